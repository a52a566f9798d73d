from dataclasses import replace

from plimsoll.report.summary import Epoch, Outcome, early_end, epoch_summary, final_summary, where_and_next

EPOCH = Epoch(
    number=2,
    epochs=100,
    train_loss=0.123456,
    validation_loss=0.234567,
    epoch_seconds=150.0,
    elapsed_seconds=297.0,
)

OUTCOME = Outcome(
    steps=12_000,
    train_loss=0.25,
    validation_loss=0.35,
    best_validation_loss=0.3456789,
    best_step=11_000,
    total_seconds=15_000.0,
    epochs=100,
    epochs_begun=100.0,
    waited_share=0.0123,
)


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_golden_epoch_summary():
    assert lines(epoch_summary(EPOCH)) == [
        "Epoch 2/100 summary",
        "=" * 80,
        "Train Loss: 0.123456",
        "Val Loss: 0.234567",
        "Epoch Time: 2.50 min (150.0 s)",
        "Elapsed Time: 4.95 min",
    ]


def test_golden_final_summary():
    assert lines(final_summary(OUTCOME)) == [
        "Training complete",
        "=" * 80,
        "Best Validation Loss: 0.345679 at step 11,000",
        "Final Training Loss: 0.250000",
        "Final Validation Loss: 0.350000",
        "Steps: 12,000",
        "Total Training Time: 250.00 minutes (4.17 hours)",
        "Average Epoch Time: 2.50 minutes",
        "Total Epochs: 100",
        "Waited For Data: 1.2 % of the time",
    ]


def test_a_run_without_validation_or_epochs_says_so():
    bare = replace(OUTCOME, validation_loss=None, best_validation_loss=None, best_step=None, epochs=0)
    text = final_summary(bare)
    assert text.count("no validation") == 2
    assert "no whole epoch" in text
    assert "no validation" in epoch_summary(replace(EPOCH, validation_loss=None))


def test_a_run_ends_with_where_it_is_and_what_to_type():
    text = where_and_next("runs/mine", OUTCOME, uses=["plimsoll sample {run}"])
    assert text.splitlines() == [
        "The run is in runs/mine",
        "Next:",
        "  plimsoll evaluate runs/mine",
        "  plimsoll sample runs/mine",
        "  plimsoll report runs/mine",
    ]
    of_functions = where_and_next("r", OUTCOME, uses=[], of_functions=True)  # which no command has
    assert "plimsoll evaluate" not in of_functions
    assert "plimsoll.load(...)" in of_functions
    assert "the same command again" in where_and_next("r", replace(OUTCOME, finished=False), uses=[])


def test_a_session_that_max_steps_ended_goes_on_with_more_of_them():
    at_limit = replace(OUTCOME, finished=False, is_at_limit=True)
    assert "--max-steps" in final_summary(at_limit)
    assert "the same command with a larger --max-steps" in where_and_next("r", at_limit, uses=[])
    assert "the same call with a larger max_steps=" in where_and_next("r", at_limit, uses=[], of_functions=True)


def test_a_run_that_patience_has_ended_says_why_which_step_is_the_best_and_how_to_go_on():
    why = early_end(12_000, 20_000, patience=3, best_by="loss")
    ended = replace(OUTCOME, finished=False, ended_early=why)
    first, *rest = lines(final_summary(ended))
    assert all(words in first for words in ("step 12,000 of 20,000", "3 evaluations", "(--patience 3)"))
    assert "Best Validation Loss: 0.345679 at step 11,000" in rest
    text = where_and_next("r", ended, uses=[])
    assert "step 11,000, the best one; --step last is step 12,000" in text
    assert "the same command without --patience" in text
    assert "no higher validation ndcg@10 (--patience 1)" in early_end(6, 9, patience=1, best_by="ndcg@10")
