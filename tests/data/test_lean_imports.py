"""Reading and tokenising text imports neither JAX nor Grain, and `datasets` and Arrow only where needed."""

from programs import printed

PROGRAM = """
import sys
from plimsoll.data import hub
from plimsoll.data.text import documents, formats, opening, pieces, streams
heavy = {"jax", "grain", "datasets", "pyarrow", "zstandard", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
from plimsoll.data.text import survey, tokenizer
read = opening.python_sources(max_examples=3)
trained = tokenizer.train_byte_bpe(read, 300)
survey.survey(read, trained, seq_len=8)
survey.describe_text(read)
survey.collect_held_out(read, trained, seq_len=8)
from plimsoll.data.chat import kept, records, tokenizer
heavy = {"jax", "grain", "datasets", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""


def test_text_is_read_and_tokenised_without_jax_and_grain():
    printed(PROGRAM)
