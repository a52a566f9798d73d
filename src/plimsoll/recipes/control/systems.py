"""Thirty-five linear systems of control: their matrices as functions of physical parameters, and their costs.

Each family is `x' = A x + B u` around an operating point, with the weights Q and R of its quadratic cost and the box
that its initial states are sampled from. They are those of the published Universal LQR data set, with its signs and its
numbers, where they are physically doubtful too (`Family.doubt` says it): a controller of the system as written is what
there is to imitate. Parameters are SI units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # else where it is needed: the command line's help comes through here, and NumPy takes 0.1 s
    import numpy as np

Entries = Mapping[tuple[int, int], float]
Parameters = Mapping[str, float]
Equations = Callable[[str, Any], tuple[Entries, Entries]]
"""Function from a family's name and its parameters, as attributes, to the non-zero entries of A and B."""

MOST_STATES, MOST_INPUTS = 12, 6
GRAVITY = 9.81


@dataclass(frozen=True)
class Family:
    """One kind of system."""

    name: str
    states: int
    inputs: int
    parameters: Parameters
    state_cost: tuple[float, ...]
    """Diagonal of Q."""
    input_cost: tuple[float, ...]
    """Diagonal of R."""
    box: tuple[float, ...]
    """Half-widths that initial states are sampled from, uniformly."""
    equations: Equations = field(repr=False)
    doubt: str = ""

    def matrices(self, parameters: Parameters | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns A (states, states) and B (states, inputs) in float64, of the nominal parameters by default."""
        import numpy as np

        a, b = np.zeros((self.states, self.states)), np.zeros((self.states, self.inputs))
        of_a, of_b = self.equations(self.name, SimpleNamespace(**(parameters or self.parameters)))
        for matrix, entries in ((a, of_a), (b, of_b)):
            for place, value in entries.items():
                matrix[place] = value
        return a, b


def _rates(count: int) -> dict[tuple[int, int], float]:
    """Returns the entries of A by which the first half of the states are positions, the second half their rates."""
    return {(row, row + count): 1.0 for row in range(count)}


def _pendulums(name: str, p: Any) -> tuple[Entries, Entries]:
    """Returns the entries of what swings: a spring or gravity, and friction."""
    match name:
        case "MassSpringDamper":
            return {(0, 1): 1, (1, 0): -p.k / p.m, (1, 1): -p.c / p.m}, {(1, 0): 1 / p.m}
        case "SimplePendulum" | "InvertedPendulum":
            inertia = p.m * p.l**2
            return {(0, 1): 1, (1, 0): p.g / p.l, (1, 1): -p.b / inertia}, {(1, 0): 1 / inertia}
        case "DoublePendulum":
            both = p.g * (p.m1 + p.m2)
            a = _rates(2) | {
                (2, 0): both / (p.l1 * p.m1),
                (2, 1): -p.g * p.m2 / (p.l1 * p.m1),
                (2, 2): -p.b1 / (p.m1 * p.l1**2),
                (3, 0): -both / (p.l2 * p.m2),
                (3, 1): both / (p.l2 * p.m2),
                (3, 3): -p.b2 / (p.m2 * p.l2**2),
            }
            return a, {(2, 0): 1 / (p.m1 * p.l1**2)}
        case "CartPole":
            a = {(0, 1): 1, (1, 1): -p.b / p.M, (1, 2): -p.m * p.g / p.M}
            a |= {(2, 3): 1, (3, 1): p.b / (p.M * p.l), (3, 2): (p.M + p.m) * p.g / (p.M * p.l)}
            return a, {(1, 0): 1 / p.M, (3, 0): -1 / (p.M * p.l)}
        case "Acrobot":
            a = _rates(2) | {(2, 0): p.g * (p.m1 + p.m2) / p.l1, (2, 1): -p.g * p.m2 / p.l1}
            return a | {(3, 0): -p.g / p.l2, (3, 1): p.g / p.l2}, {(3, 0): 1 / (p.m2 * p.l2**2)}
        case "FurutaPendulum":
            arm = p.Jr + p.mp * p.lr**2
            a = _rates(2) | {(2, 2): -p.br / arm, (3, 1): p.mp * p.g * p.lp / p.Jp, (3, 3): -p.bp / p.Jp}
            return a, {(2, 0): 1 / arm, (3, 0): p.lr / (p.Jp * p.lp)}
        case "ReactionWheelPendulum":
            pull = p.mp * p.g * p.lp
            a = _rates(2) | {
                (2, 0): pull / p.Jp,
                (2, 2): -p.bp / p.Jp,
                (2, 3): p.bw / p.Jp,
                (3, 0): -pull / p.Jw,
                (3, 2): p.bp / p.Jw,
                (3, 3): -p.bw / p.Jw,
            }
            return a, {(2, 0): -1 / p.Jp, (3, 0): 1 / p.Jp + 1 / p.Jw}
    raise LookupError(name)


def _machines(name: str, p: Any) -> tuple[Entries, Entries]:
    """Returns the entries of what rolls, bends, hovers, drives or reacts in one place."""
    match name:
        case "BallAndBeam" | "BallAndPlate":
            roll = -p.m * p.g * p.R_**2 / (p.Jb + p.m * p.R_**2)  # acceleration per radian of the support
            if name == "BallAndBeam":
                return {(0, 1): 1, (1, 2): roll, (2, 3): 1}, {(3, 0): 1}
            return {(0, 2): 1, (1, 3): 1, (2, 4): roll, (3, 5): roll}, {(4, 0): 1, (5, 1): 1}
        case "FlexibleBeam":  # the first mode of a cantilever, (1.875 / L)^2 sqrt(E I / m), damped by 4 times as much
            frequency = 1.875**2 * math.sqrt(p.E * p.I / (p.m * p.L**4))
            return {(0, 1): 1, (1, 0): -(frequency**2), (1, 1): -4 * frequency}, {(1, 0): 1 / p.m}
        case "MagneticLevitation":  # around a gap of 4 cm (2 g / 0.04 = 50 g), with the current that holds the ball
            pull = 50 * p.k * math.sqrt(p.m * p.g / p.k) / p.m
            a = {(0, 1): 1, (1, 0): 50 * p.g, (1, 1): -0.1, (1, 2): -pull, (2, 2): -p.R_ / p.L}
            return a, {(2, 0): 1 / p.L}
        case "SuspensionSystem":
            a = _rates(2) | {
                (2, 0): -p.ks / p.ms,
                (2, 1): p.ks / p.ms,
                (2, 2): -p.cs / p.ms,
                (2, 3): p.cs / p.ms,
                (3, 0): p.ks / p.mu,
                (3, 1): -(p.ks + p.kt) / p.mu,
                (3, 2): p.cs / p.mu,
                (3, 3): -p.cs / p.mu,
            }
            return a, {(2, 0): 1 / p.ms, (3, 0): -1 / p.mu}
        case "DCMotor":
            a = {(0, 1): 1, (1, 1): -p.b / p.J, (1, 2): p.Kt / p.J, (2, 1): -p.Ke / p.L, (2, 2): -p.R_ / p.L}
            return a, {(2, 0): 1 / p.L}
        case "DoubleIntegrator":
            return {(0, 1): 1}, {(1, 0): 1 / p.m}
        case "LotkaVolterra":
            a = {(0, 1): -p.beta * p.gamma / p.delta, (1, 0): p.alpha * p.delta / p.beta}
            return a, {(0, 0): 1, (1, 1): 1}
        case "ChemicalReactor":  # around 370 K and a concentration of 6
            rate = p.k0 * math.exp(-p.E / 370)
            slope = 6 * rate * p.E / 370**2
            heat = p.rho * p.Cp
            a = {(0, 0): -p.F / p.V - rate - 0.1, (0, 1): -slope, (1, 0): -p.H * rate / heat}
            a |= {(1, 1): -p.F / p.V - 0.05 - p.H * slope / heat - p.UA / (heat * p.V)}
            return a, {(1, 0): p.UA / (heat * p.V)}
    raise LookupError(name)


SIX_LINKS = (2.0, 1.8, 1.5, 1.0, 0.8, 0.5), (0.4, 0.35, 0.3, 0.25, 0.2, 0.15)
SIX_JOINTS = (0.05, 0.04, 0.03, 0.02, 0.015, 0.01), (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Masses and lengths of the links, inertias and frictions of the joints: no variant changes them."""


def _joints(name: str, p: Any) -> tuple[Entries, Entries]:
    """Returns the entries of joints that do not feel one another: a spring (the weight), a friction and a torque each.

    Of all joints: the inertias, the pulls of the weight per radian, and the frictions.
    """
    match name:
        case "ThreeLinkManipulator":
            pair, last = p.m2 + p.m3, p.m3 * p.l3**2
            inertias = (p.m1 + p.m2 + p.m3) * p.l1**2 + pair * p.l2**2 + last, pair * p.l2**2 + last, last
            pulls = p.g * p.l1 * (p.m1 / 2 + p.m2 + p.m3), p.g * p.l2 * (p.m2 / 2 + p.m3), p.g * p.l3 * p.m3 / 2
            frictions = p.b1, p.b2, p.b3
        case "SCARARobot":
            inertias = p.m1 * p.l1**2 + p.m2 * (p.l1**2 + p.l2**2), p.m2 * p.l2**2, p.m3, p.I3
            pulls, frictions = (0,) * 4, (p.b1, p.b2, p.b3, p.b4)
        case "OmnidirectionalRobot":
            inertias, pulls, frictions = (p.m, p.m, p.I), (0, 0, 0), (p.b_v, p.b_v, p.b_w)
        case "SixDOFManipulator":
            (masses, lengths), (own, frictions) = SIX_LINKS, SIX_JOINTS
            beyond = [sum(masses[joint + 1 :]) for joint in range(6)]
            inertias = [own[joint] + beyond[joint] * lengths[joint] ** 2 for joint in range(6)]
            pulls = [p.g * lengths[joint] * (masses[joint] + beyond[joint]) / 2 for joint in range(6)]
        case "DualArmRobot":
            inertias = (p.I1 + p.I2 + p.m2 * p.l1**2, p.I2) * 2
            pulls = (p.g * p.l1 * (p.m1 / 2 + p.m2), p.g * p.l2 * p.m2 / 2) * 2
            frictions = (p.b,) * 4
        case _:
            raise LookupError(name)
    count = len(inertias)
    a = _rates(count)
    for joint, (inertia, pull, friction) in enumerate(zip(inertias, pulls, frictions, strict=True)):
        if pull:
            a[count + joint, joint] = -pull / inertia
        a[count + joint, count + joint] = -friction / inertia
    return a, {(count + joint, joint): 1 / inertia for joint, inertia in enumerate(inertias)}


def _robots(name: str, p: Any) -> tuple[Entries, Entries]:
    """Returns the entries of arms and robots on wheels, cables and legs."""
    match name:
        case "TwoLinkArm":
            import numpy as np

            first, second, shared = p.I1 + p.I2 + p.m2 * p.l1**2, p.I2, p.I2 + p.m2 * p.l1 * p.lc2
            inverse = np.array([[second, -shared], [-shared, first]]) / (first * second - shared**2)
            pulls = np.diag([-(p.m1 * p.lc1 + p.m2 * p.l1) * p.g, -p.m2 * p.lc2 * p.g])
            springs, frictions = inverse @ pulls, inverse @ np.diag([-p.b1, -p.b2])
            a, b = _rates(2), {}
            for row, col in np.ndindex(2, 2):
                a[2 + row, col], a[2 + row, 2 + col] = springs[row, col], frictions[row, col]
                b[2 + row, col] = inverse[row, col]
            return a, b
        case "UnicycleRobot":
            a = {(0, 3): 1, (1, 2): p.v0, (2, 4): 1, (3, 3): -p.b_v, (4, 4): -p.b_w}
            return a, {(3, 0): 1, (4, 1): 1}
        case "DifferentialDriveRobot":
            a = {(0, 3): p.r / 2, (0, 4): p.r / 2, (1, 2): 1, (2, 3): p.r / p.L, (2, 4): -p.r / p.L}
            return a | {(3, 3): -p.b / p.m, (4, 4): -p.b / p.m}, {(3, 0): 1 / p.m, (4, 1): 1 / p.m}
        case "SegwayRobot":
            mass, inertia = p.M + p.m, p.Ib + p.M * p.L**2
            a = _rates(2) | {(2, 1): -p.M * p.g * p.L / mass, (2, 2): -p.b / mass, (3, 1): p.g * p.L / inertia}
            a |= {(3, 2): p.b * p.L / (inertia * mass)}
            return a, {(2, 0): 1 / (p.r * mass), (3, 0): -p.L / (p.r * inertia * mass)}
        case "CableDrivenRobot":  # three cables, a third of a turn apart
            pulls = {(2, 0): 0.5, (2, 1): -0.25, (2, 2): -0.25, (3, 1): 0.433, (3, 2): -0.433}
            a = _rates(2) | {(2, 2): -p.b / p.m, (3, 3): -p.b / p.m}
            return a, {place: pull / p.m for place, pull in pulls.items()}
        case "FlexibleJointRobot":
            a = _rates(2) | {(2, 0): -(p.k + p.mgl) / p.Jl, (2, 1): p.k / p.Jl, (2, 2): -p.bl / p.Jl}
            return a | {(3, 0): p.k / p.Jm, (3, 1): -p.k / p.Jm, (3, 3): -p.bm / p.Jm}, {(3, 0): 1 / p.Jm}
        case "PlanarBiped":
            inertia = p.I + p.m * p.L**2
            a = _rates(2) | {(2, 1): -p.g * p.L, (2, 2): -p.b_x / p.m, (2, 3): p.b_theta / (p.m * p.L)}
            a |= {(3, 1): p.m * p.g * p.L / inertia, (3, 2): p.b_x * p.L / inertia, (3, 3): -p.b_theta / inertia}
            return a, {(2, 0): 1 / p.m, (3, 0): -p.L / inertia}
    raise LookupError(name)


def _vehicles(name: str, p: Any) -> tuple[Entries, Entries]:
    """Returns the entries of what drives on roads or flies."""
    match name:
        case "VehicleLateralDynamics":
            turn = p.Cr * p.lr - p.Cf * p.lf
            a = {
                (0, 0): -(p.Cf + p.Cr) / (p.m * p.Vx),
                (0, 1): turn / (p.m * p.Vx) - p.Vx,
                (1, 0): turn / (p.Iz * p.Vx),
                (1, 1): -(p.Cf * p.lf**2 + p.Cr * p.lr**2) / (p.Iz * p.Vx),
                (2, 0): 1,
                (2, 2): -0.01,
                (2, 3): p.Vx,
                (3, 1): 1,
                (3, 3): -0.01,
            }
            return a, {(0, 0): p.Cf / p.m, (1, 0): p.Cf * p.lf / p.Iz}
        case "LongitudinalCruiseControl":  # drag around 15 m/s
            drag = -15 * p.rho * p.Cd * p.A / p.m - p.Cr * p.g - 0.5
            return {(0, 1): 1, (1, 1): drag}, {(1, 0): 1 / p.m}
        case "PlatooningModel":
            a: dict[tuple[int, int], float] = {(2 * car, 2 * car + 1): 1 for car in range(3)}
            a |= {(2 * car + 1, 2 * car + 1): -1 / p.tau for car in range(3)}
            for car in (1, 2):  # each follows the one before it
                a |= {(2 * car + 1, 2 * car - 2): p.k_p / p.tau, (2 * car + 1, 2 * car - 1): p.k_v / p.tau}
            return a, {(2 * car + 1, car): 1 for car in range(3)}
        case "QuadrotorHover":
            drag = {(row, row): -0.5 if row < 9 else -0.1 for row in range(6, 12)}
            b = {(8, 0): 1 / p.m, (9, 1): 1 / p.Ix, (10, 2): 1 / p.Iy, (11, 3): 1 / p.Iz}
            return _rates(6) | {(6, 4): p.g, (7, 3): -p.g} | drag, b
        case "FixedWingAircraft":
            a = {(0, 0): p.Xu, (0, 1): p.Xw, (0, 3): -p.g, (1, 0): p.Zu, (1, 1): p.Zw, (1, 2): p.U0 + p.Zq}
            a |= {(2, 0): p.Mu, (2, 1): p.Mw, (2, 2): p.Mq, (3, 2): 1, (3, 3): -0.01}
            return a, {(0, 0): 0.05, (1, 0): -2, (2, 0): -5}
        case "VTOLLinearized":
            a = _rates(3) | {(3, 2): -p.g, (3, 3): -0.5, (4, 4): -0.5, (5, 5): -0.2}
            return a, {(4, 0): 1 / p.m, (5, 1): 1 / p.J}
    raise LookupError(name)


UPRIGHT = "described as hanging down, but with the sign of an upright pendulum: unstable"
ANOTHER_ORDER = "initial states are drawn in an order that is not that of the states"
INDEFINITE = "its mass matrix is indefinite with these numbers: open-loop pole at +9.8"
FAMILIES: dict[str, Family] = {}
"""Families by name. Their order is part of the seed of their variants."""


def _family(
    name: str,
    equations: Equations,
    *,
    Q: tuple[float, ...],
    R: tuple[float, ...],
    box: tuple[float, ...],
    doubt: str = "",
    **p: float,
) -> None:
    FAMILIES[name] = Family(name, len(Q), len(R), p, Q, R, box, equations, doubt)


# fmt: off
_family("MassSpringDamper", _pendulums, Q=(10, 1), R=(1,), box=(2, 2), m=1.0, c=0.5, k=2.0)
_family("SimplePendulum", _pendulums, Q=(20, 1), R=(1,), box=(1, 2), doubt=UPRIGHT, m=1.0, l=1.0, b=0.1, g=GRAVITY)
_family("InvertedPendulum", _pendulums, Q=(50, 5), R=(10,), box=(0.4, 1), m=0.5, l=0.5, b=0.05, g=GRAVITY)
_family("DoublePendulum", _pendulums, Q=(10,) * 4, R=(10,), box=(0.8, 0.8, 1.5, 1.5), doubt=UPRIGHT,
        m1=1.0, m2=1.0, l1=1.0, l2=1.0, b1=0.1, b2=0.1, g=GRAVITY)
_family("CartPole", _pendulums, Q=(10, 1, 100, 10), R=(10,), box=(2, 1, 0.5, 1), M=1.0, m=0.3, l=0.5, b=0.1, g=GRAVITY)
_family("Acrobot", _pendulums, Q=(15, 15, 2, 2), R=(10,), box=(1, 1, 2, 2), doubt=UPRIGHT,
        m1=1.0, m2=1.0, l1=1.0, l2=1.0, lc1=0.5, lc2=0.5, I1=0.083, I2=0.083, g=GRAVITY)
_family("FurutaPendulum", _pendulums, Q=(1, 100, 1, 10), R=(10,), box=(1, 0.5, 1.5, 1),
        Jr=0.05, Jp=0.01, mp=0.15, lp=0.2, lr=0.15, br=0.02, bp=0.005, g=GRAVITY)
_family("BallAndBeam", _machines, Q=(20, 2, 10, 1), R=(1,), box=(0.5,) * 4, doubt=ANOTHER_ORDER,
        m=0.05, R_=0.02, Jb=2e-6, L=0.5, g=GRAVITY)
_family("BallAndPlate", _machines, Q=(20, 20, 2, 2, 10, 10), R=(1, 1), box=(0.3, 0.3, 0.5, 0.5, 0.5, 0.5),
        doubt=ANOTHER_ORDER, m=0.05, R_=0.02, g=GRAVITY, Jb=2e-6)
_family("ReactionWheelPendulum", _pendulums, Q=(100, 0.1, 10, 0.1), R=(100,), box=(0.8, 2, 1, 2),
        mp=0.3, mw=0.1, lp=0.25, Jp=0.008, Jw=0.001, bp=0.02, bw=0.005, g=GRAVITY)
_family("FlexibleBeam", _machines, Q=(100, 100), R=(100,), box=(0.1, 0.5), E=5e8, I=1e-8, L=0.4, m=0.1, c=10.0)
_family("MagneticLevitation", _machines, Q=(100, 10, 0.1), R=(100,), box=(0.02, 0.1, 2),
        m=0.02, k=0.01, L=0.1, R_=10.0, g=GRAVITY)
_family("SuspensionSystem", _machines, Q=(100, 10, 10, 100), R=(10,), box=(0.15, 0.1, 1, 2),
        ms=250.0, mu=40.0, ks=10_000, kt=150_000, cs=1_500)
_family("DCMotor", _machines, Q=(10, 1, 0.1), R=(1,), box=(2 * math.pi, 10, 2),
        J=0.01, b=0.1, Kt=0.01, Ke=0.01, R_=1.0, L=0.5)
_family("TwoLinkArm", _robots, Q=(10, 10, 1, 1), R=(1, 1), box=(1, 1, 1.5, 1.5), doubt=INDEFINITE,
        m1=1.0, m2=1.0, l1=0.5, l2=0.5, lc1=0.25, lc2=0.25, I1=0.02, I2=0.02, b1=0.1, b2=0.1, g=GRAVITY)
_family("ThreeLinkManipulator", _joints, Q=(10, 10, 10, 1, 1, 1), R=(1, 1, 1), box=(1, 1, 1, 1.5, 1.5, 1.5),
        m1=1.0, m2=1.0, m3=1.0, l1=0.4, l2=0.4, l3=0.4, I1=0.013, I2=0.013, I3=0.013, b1=0.1, b2=0.1, b3=0.1,
        g=GRAVITY)
_family("UnicycleRobot", _robots, Q=(10, 10, 5, 1, 1), R=(1, 1), box=(3, 3, 1, 2, 1), v0=1.0, b_v=0.1, b_w=0.1)
_family("DifferentialDriveRobot", _robots, Q=(20, 20, 10, 1, 1), R=(10, 10), box=(3, 3, 1, 1, 1),
        m=5.0, I=0.5, r=0.05, L=0.25, b=1.0)
_family("SCARARobot", _joints, Q=(20, 20, 30, 15, 2, 2, 3, 1.5), R=(10,) * 4, box=(1, 1, 0.2, 1, 1.5, 1.5, 0.5, 1),
        m1=2.0, m2=1.5, m3=1.0, l1=0.3, l2=0.25, I1=0.04, I2=0.03, I3=0.01, b1=0.5, b2=0.5, b3=0.3, b4=0.2, g=GRAVITY)
_family("SegwayRobot", _robots, Q=(10, 100, 10, 10), R=(10,), box=(2, 0.35, 1.5, 1), doubt="gains beyond 1,000",
        M=50.0, m=5.0, L=0.8, r=0.15, Ib=10.0, Iw=0.1, b=0.5, g=GRAVITY)
_family("OmnidirectionalRobot", _joints, Q=(20, 20, 10, 2, 2, 1), R=(10,) * 3, box=(3, 3, 1, 2, 2, 1),
        m=8.0, I=1.0, b_v=1.0, b_w=0.5)
_family("CableDrivenRobot", _robots, Q=(50, 50, 5, 5), R=(10,) * 3, box=(1,) * 4, m=2.0, b=0.5, g=GRAVITY)
_family("FlexibleJointRobot", _robots, Q=(100, 50, 100, 50), R=(100,), box=(1, 1, 2, 2),
        Jl=0.5, Jm=0.05, k=100.0, bl=0.5, bm=0.1, mgl=5.0)
_family("PlanarBiped", _robots, Q=(10, 200, 10, 20), R=(50,), box=(1, 0.35, 1.5, 1),
        m=20.0, L=0.9, I=2.0, b_x=1.0, b_theta=0.5, g=GRAVITY)
_family("SixDOFManipulator", _joints, Q=(15,) * 3 + (10,) * 3 + (2,) * 3 + (1,) * 3, R=(10,) * 6,
        box=(1,) * 6 + (1.5,) * 6, g=GRAVITY)
_family("DualArmRobot", _joints, Q=(15,) * 4 + (2,) * 4, R=(10,) * 4, box=(1,) * 4 + (1.5,) * 4,
        m1=1.5, m2=1.0, l1=0.4, l2=0.35, I1=0.03, I2=0.02, b=0.6, g=GRAVITY)
_family("VehicleLateralDynamics", _vehicles, Q=(10, 20, 100, 50), R=(100,), box=(3, 1, 3, 0.5),
        m=1200.0, Iz=2000.0, lf=1.0, lr=1.4, Cf=15_000, Cr=25_000, Vx=15.0)
_family("LongitudinalCruiseControl", _vehicles, Q=(10, 100), R=(10,), box=(50, 10),
        doubt="its slow pole is at -0.0013 per second", m=1200.0, Cd=0.25, A=2.0, rho=1.225, Cr=0.015, g=GRAVITY)
_family("PlatooningModel", _vehicles, Q=(10, 1) * 3, R=(1,) * 3, box=(15, 5) * 3, tau=0.5, k_p=0.5, k_v=1.0)
_family("QuadrotorHover", _vehicles, Q=(20, 20, 50, 100, 100, 20, 2, 2, 5, 10, 10, 2), R=(10,) * 4,
        box=(3, 3, 2, 0.35, 0.35, 0.5, 2, 2, 1.5, 1, 1, 1),
        m=0.8, g=GRAVITY, Ix=0.03, Iy=0.03, Iz=0.05, l=0.2, b=1e-6, d=1e-7)
_family("FixedWingAircraft", _vehicles, Q=(10, 20, 50, 100), R=(100,), box=(10, 5, 0.5, 0.5),
        Xu=-0.2, Xw=0.05, Zu=-0.5, Zw=-3.0, Zq=-8.0, Mu=0.0, Mw=-1.0, Mq=-5.0, g=GRAVITY, U0=30.0)
_family("VTOLLinearized", _vehicles, Q=(50, 100, 100, 5, 10, 10), R=(10, 10), box=(3, 3, 0.5, 2, 2, 1),
        m=3.0, J=0.05, g=GRAVITY, l=0.2)
_family("DoubleIntegrator", _machines, Q=(10, 1), R=(1,), box=(5, 3), m=1.0)
_family("LotkaVolterra", _machines, Q=(10, 10), R=(10, 10), box=(7, 4), alpha=1.0, beta=0.1, gamma=1.5, delta=0.075)
_family("ChemicalReactor", _machines, Q=(200, 10), R=(10,), box=(1.5, 150),
        V=1.0, rho=1_000, Cp=4_180, H=-2e5, k0=7.2e10, E=8_750, UA=5e4, F=0.1, Ca0=10.0, T0=350.0, Tc=300.0)
# fmt: on
