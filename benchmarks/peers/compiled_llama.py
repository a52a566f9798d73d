"""A Llama of `transformers` with `torch.compile`, as one side of device.py: tokens a second and peak bytes of a card.

    PYTHON benchmarks/peers/compiled_llama.py '{"width": 768, "layers": 12, "heads": 12, "vocab_size": 16384,
                                                "seq_len": 1024, "batch": 64}'

bfloat16 autocast, SDPA, the fused AdamW, clipped to a norm of 1; random tokens that lie on the card; the median of
steps that are waited for. It needs torch and transformers, and none of plimsoll. One line of JSON.
"""

import json
import statistics
import sys
import time

WARM, TIMED = 5, 10
"""Steps before the clock, compiling among them, and with it."""


def side() -> None:
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as problem:
        sys.exit(f"torch or transformers is not installed in {sys.executable}: {problem}")
    asked = json.loads(sys.argv[1])
    if not torch.cuda.is_available():
        sys.exit("torch finds no card")
    torch.set_float32_matmul_precision("high")
    inner = max(64, round(asked["width"] * 8 / 3 / 64) * 64)  # as plimsoll.models.sizing.inner_width
    shape = LlamaConfig(
        hidden_size=asked["width"],
        intermediate_size=inner,
        num_hidden_layers=asked["layers"],
        num_attention_heads=asked["heads"],
        vocab_size=asked["vocab_size"],
        max_position_embeddings=asked["seq_len"],
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = LlamaForCausalLM(shape).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    tokens = torch.randint(0, asked["vocab_size"], (asked["batch"], asked["seq_len"]), device="cuda")
    seconds = []
    for step in range(WARM + TIMED):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= WARM:
            seconds.append(time.perf_counter() - begun)
    took = statistics.median(seconds)
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "parameters": sum(each.numel() for each in model.parameters()),
                "step_seconds": took,
                "tokens_per_second": asked["batch"] * asked["seq_len"] / took,
                "peak_bytes": torch.cuda.max_memory_allocated(),
            }
        )
    )
