"""Final loss of a language model by its parameters and its tokens, with how uncertain that is.

    L(N, D) = E + A / N^alpha + B / D^beta

The five numbers are those of Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556, the parametric fit of approach 3):
of models from 70M to 16B parameters on 5B to 500B tokens of their text, in nats per token of their tokenizer. Here they
are a prior. Another text and tokenizer have another loss, and smaller models lie outside of what was fitted. So each
number may move by PRIOR, and earlier runs on the same data move it: the most probable numbers are taken (Gauss-Newton),
with their covariance.

Tokens that are read again count less, as Muennighoff et al. 2023 found (https://arxiv.org/abs/2305.16264, section 3.1).
What they found of parameters beyond the best size for the unique tokens is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28
REPEATS = 15.387756
"""Epochs after the first whose tokens together are worth 1 - 1/e of as many new ones (R*_D, appendix A there)."""
FITTED_PARAMETERS, FITTED_TOKENS = (70e6, 16e9), (5e9, 500e9)
"""Least and most of what the five numbers were fitted on."""

MIDDLE_PARAMETERS, MIDDLE_TOKENS = 1e9, 2e10
"""Place where the sizes of the two terms are best known; beyond it the exponents' errors count."""
PRIOR = (0.5, 0.5, 0.25, 0.05, 0.02)
"""Standard deviations of what is added: to log E; to the logarithms of both terms; to that of the first and from that
of the second; to both exponents; to the first and from the second. Chosen by hand, so that text with half the loss, and
a best size half or twice as large, are nothing unusual."""
NOISE = 0.02
"""Standard deviation of a run's log loss around the law: other seeds, and what the form misses."""
LAWS = 200
"""Laws that are sampled for an uncertainty."""
INTERVAL = 2.0
"""Standard deviations on either side of a predicted loss: about 95 in 100."""

Shift = tuple[float, float, float, float, float]
"""What is added to Hoffmann's numbers, in the order of PRIOR."""
NO_SHIFT: Shift = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Observed:
    """A finished run, as far as the law is concerned."""

    parameters: float
    tokens: float
    """Effective tokens (`effective_tokens`)."""
    loss: float
    """Final loss on held-out data, in nats per token."""
    run: str = ""


def effective_tokens(tokens: float, unique: float | None) -> float:
    """Returns how many new tokens are worth as much as these, some of which were read before.

    Args:
        tokens: Tokens that a run reads.
        unique: Tokens of its data; None where it never reads one twice.
    """
    if unique is None or tokens <= unique:
        return tokens
    return unique * (1 + REPEATS * (1 - math.exp(-(tokens / unique - 1) / REPEATS)))


@dataclass(frozen=True)
class LossLaw:
    """A law of this form: by default Hoffmann's numbers, with the uncertainty of the prior."""

    shift: Shift = NO_SHIFT
    root: tuple[tuple[float, ...], ...] = tuple(
        tuple(sd if row == column else 0.0 for column in range(len(PRIOR))) for row, sd in enumerate(PRIOR)
    )
    """Lower triangular root of the shift's covariance."""

    def loss(self, parameters: float, tokens: float) -> float:
        """Returns the predicted loss in nats per token.

        Args:
            parameters: Parameters of the model, its embedding included.
            tokens: Effective tokens.
        """
        return sum(self._terms(parameters, tokens))

    def interval(self, parameters: float, tokens: float) -> tuple[float, float]:
        """Returns the ends of an interval that has the loss in about 95 of 100 cases."""
        loss, gradient = self.loss(parameters, tokens), self.gradient(parameters, tokens)
        spread = [sum(g * row[k] for g, row in zip(gradient, self.root, strict=True)) for k in range(len(PRIOR))]
        half = INTERVAL * math.hypot(NOISE, *spread)
        return loss * math.exp(-half), loss * math.exp(half)

    def samples(self, count: int, seed: int = 0) -> Iterator[LossLaw]:
        """Yields laws that are as probable as their uncertainty says, the same ones each time."""
        import numpy as np

        root = np.array(self.root)
        for normal in np.random.default_rng(seed).standard_normal((count, len(PRIOR))):
            yield LossLaw(_shift(np.array(self.shift) + root @ normal), self.root)

    def _terms(self, parameters: float, tokens: float) -> tuple[float, float, float]:
        level, scale, ratio, slope, twist = self.shift
        size = A / MIDDLE_PARAMETERS**ALPHA * math.exp(scale + ratio)
        data = B / MIDDLE_TOKENS**BETA * math.exp(scale - ratio)
        size *= (MIDDLE_PARAMETERS / parameters) ** (ALPHA + slope + twist)
        data *= (MIDDLE_TOKENS / tokens) ** (BETA + slope - twist)
        return E * math.exp(level), size, data

    def gradient(self, parameters: float, tokens: float) -> tuple[float, ...]:
        """Returns the derivatives of the log loss by the shift."""
        level, size, data = self._terms(parameters, tokens)
        by_size = size * math.log(MIDDLE_PARAMETERS / parameters)
        by_data = data * math.log(MIDDLE_TOKENS / tokens)
        loss = level + size + data
        each = (level, size + data, size - data, by_size + by_data, by_size - by_data)
        return tuple(derivative / loss for derivative in each)


def by_probable_laws(law: LossLaw, sizes: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], float]:
    """Returns the range of best sizes for 9 of 10 laws that are as probable as this one's uncertainty says.

    Args:
        law: The law.
        sizes: Parameters and effective tokens of runs of the same time, the chosen one first.

    Returns:
        The range, and the share by which the chosen one's loss is above the lowest, at most, for 9 of 10 of the laws.
    """
    best: list[float] = []
    excess: list[float] = []
    for sampled in law.samples(LAWS):
        losses = [sampled.loss(*size) for size in sizes]
        least = min(range(len(losses)), key=losses.__getitem__)
        best.append(sizes[least][0])
        excess.append(losses[0] / losses[least] - 1)
    best.sort()
    excess.sort()
    return (best[LAWS // 20], best[-LAWS // 20 - 1]), excess[-LAWS // 10 - 1]


def corrected(runs: Sequence[Observed]) -> LossLaw:
    """Returns the most probable law after these runs: the prior where there are none.

    Where they scatter more than NOISE, the law is less certain by as much.
    """
    if not runs:
        return LossLaw()
    import numpy as np

    prior = np.diag([1 / sd**2 for sd in PRIOR])

    def residuals(shift: np.ndarray) -> np.ndarray:
        law = LossLaw(_shift(shift))
        return np.array([math.log(run.loss / law.loss(run.parameters, run.tokens)) / NOISE for run in runs])

    def cost(shift: np.ndarray) -> float:
        return float(np.sum(residuals(shift) ** 2) + shift @ prior @ shift)

    shift, damping = np.zeros(len(PRIOR)), 1e-3
    while True:
        law = LossLaw(_shift(shift))
        slopes = np.array([law.gradient(run.parameters, run.tokens) for run in runs]) / NOISE
        curvature = slopes.T @ slopes + prior
        downhill = slopes.T @ residuals(shift) - prior @ shift
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
        if downhill @ step < 1e-9 or damping > 1e9:
            break
        better = cost(shift + step) < cost(shift)
        shift, damping = (shift + step, damping / 5) if better else (shift, damping * 5)
    scatter = max(1.0, float(np.mean(residuals(shift) ** 2)))
    root = np.linalg.cholesky(np.linalg.inv(slopes.T @ slopes / scatter + prior))
    return LossLaw(_shift(shift), tuple(tuple(map(float, row)) for row in root))


def _shift(values: Iterable[float]) -> Shift:
    level, scale, ratio, slope, twist = map(float, values)
    return level, scale, ratio, slope, twist
