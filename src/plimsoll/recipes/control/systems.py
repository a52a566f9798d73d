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
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # else where it is needed: the command line's help comes through here, and NumPy takes 0.1 s
    import numpy as np

Entries = Mapping[tuple[int, int], float]
Parameters = Mapping[str, float]

MOST_STATES, MOST_INPUTS = 12, 6
GRAVITY = 9.81


@dataclass(frozen=True)
class Family:
    """One kind of system. `entries` makes the non-zero entries of A and B from parameters."""

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
    entries: Callable[..., tuple[Entries, Entries]] = field(repr=False)
    doubt: str = ""

    def matrices(self, parameters: Parameters | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns A (states, states) and B (states, inputs) in float64, of the nominal parameters by default."""
        import numpy as np

        a, b = np.zeros((self.states, self.states)), np.zeros((self.states, self.inputs))
        of_a, of_b = self.entries(**(self.parameters if parameters is None else parameters))
        for matrix, entries in ((a, of_a), (b, of_b)):
            for place, value in entries.items():
                matrix[place] = value
        return a, b

    def varied(self, random: np.random.Generator, uncertainty: float) -> dict[str, float]:
        """Returns every parameter times 1 + U(-uncertainty, uncertainty), gravity too."""
        factors = 1 + random.uniform(-uncertainty, uncertainty, len(self.parameters))
        return {name: value * factor for (name, value), factor in zip(self.parameters.items(), factors, strict=True)}


FAMILIES: dict[str, Family] = {}


def _family(
    name: str, *, Q: tuple[float, ...], R: tuple[float, ...], box: tuple[float, ...], doubt: str = "", **p: float
):
    def add(entries: Callable[..., tuple[Entries, Entries]]) -> Callable[..., tuple[Entries, Entries]]:
        FAMILIES[name] = Family(name, len(Q), len(R), p, Q, R, box, entries, doubt)
        return entries

    return add


def _rates(count: int) -> dict[tuple[int, int], float]:
    """Returns the entries of A by which the first half of the states are positions, the second half their rates."""
    return {(row, row + count): 1.0 for row in range(count)}


UPRIGHT = "described as hanging down, but with the sign of an upright pendulum: unstable"


@_family("MassSpringDamper", Q=(10, 1), R=(1,), box=(2, 2), m=1.0, c=0.5, k=2.0)
def _mass_spring_damper(m: float, c: float, k: float):
    return {(0, 1): 1, (1, 0): -k / m, (1, 1): -c / m}, {(1, 0): 1 / m}


def _pendulum(m: float, l: float, b: float, g: float):  # noqa: E741
    return {(0, 1): 1, (1, 0): g / l, (1, 1): -b / (m * l**2)}, {(1, 0): 1 / (m * l**2)}


_family("SimplePendulum", Q=(20, 1), R=(1,), box=(1, 2), doubt=UPRIGHT, m=1.0, l=1.0, b=0.1, g=GRAVITY)(_pendulum)
_family("InvertedPendulum", Q=(50, 5), R=(10,), box=(0.4, 1), m=0.5, l=0.5, b=0.05, g=GRAVITY)(_pendulum)


@_family(
    "DoublePendulum", Q=(10,) * 4, R=(10,), box=(0.8, 0.8, 1.5, 1.5), doubt=UPRIGHT,
    m1=1.0, m2=1.0, l1=1.0, l2=1.0, b1=0.1, b2=0.1, g=GRAVITY,
)  # fmt: skip
def _double_pendulum(m1: float, m2: float, l1: float, l2: float, b1: float, b2: float, g: float):
    both = g * (m1 + m2)
    a = _rates(2) | {
        (2, 0): both / (l1 * m1),
        (2, 1): -g * m2 / (l1 * m1),
        (2, 2): -b1 / (m1 * l1**2),
        (3, 0): -both / (l2 * m2),
        (3, 1): both / (l2 * m2),
        (3, 3): -b2 / (m2 * l2**2),
    }
    return a, {(2, 0): 1 / (m1 * l1**2)}


@_family("CartPole", Q=(10, 1, 100, 10), R=(10,), box=(2, 1, 0.5, 1), M=1.0, m=0.3, l=0.5, b=0.1, g=GRAVITY)
def _cart_pole(M: float, m: float, l: float, b: float, g: float):  # noqa: E741
    a = {
        (0, 1): 1,
        (1, 1): -b / M,
        (1, 2): -m * g / M,
        (2, 3): 1,
        (3, 1): b / (M * l),
        (3, 2): (M + m) * g / (M * l),
    }
    return a, {(1, 0): 1 / M, (3, 0): -1 / (M * l)}


@_family(
    "Acrobot", Q=(15, 15, 2, 2), R=(10,), box=(1, 1, 2, 2), doubt=UPRIGHT,
    m1=1.0, m2=1.0, l1=1.0, l2=1.0, lc1=0.5, lc2=0.5, I1=0.083, I2=0.083, g=GRAVITY,
)  # fmt: skip
def _acrobot(m1: float, m2: float, l1: float, l2: float, g: float, **_: float):
    a = _rates(2) | {(2, 0): g * (m1 + m2) / l1, (2, 1): -g * m2 / l1, (3, 0): -g / l2, (3, 1): g / l2}
    return a, {(3, 0): 1 / (m2 * l2**2)}


@_family(
    "FurutaPendulum", Q=(1, 100, 1, 10), R=(10,), box=(1, 0.5, 1.5, 1),
    Jr=0.05, Jp=0.01, mp=0.15, lp=0.2, lr=0.15, br=0.02, bp=0.005, g=GRAVITY,
)  # fmt: skip
def _furuta_pendulum(Jr: float, Jp: float, mp: float, lp: float, lr: float, br: float, bp: float, g: float):
    arm = Jr + mp * lr**2
    a = _rates(2) | {(2, 2): -br / arm, (3, 1): mp * g * lp / Jp, (3, 3): -bp / Jp}
    return a, {(2, 0): 1 / arm, (3, 0): lr / (Jp * lp)}


ANOTHER_ORDER = "initial states are drawn in an order that is not that of the states"


def _rolling(m: float, R: float, Jb: float, g: float) -> float:
    """Returns the acceleration of a rolling ball per radian of its support."""
    return -m * g * R**2 / (Jb + m * R**2)


@_family(
    "BallAndBeam", Q=(20, 2, 10, 1), R=(1,), box=(0.5,) * 4, doubt=ANOTHER_ORDER,
    m=0.05, R_=0.02, Jb=2e-6, L=0.5, g=GRAVITY,
)  # fmt: skip
def _ball_and_beam(m: float, R_: float, Jb: float, g: float, **_: float):
    return {(0, 1): 1, (1, 2): _rolling(m, R_, Jb, g), (2, 3): 1}, {(3, 0): 1}


@_family(
    "BallAndPlate", Q=(20, 20, 2, 2, 10, 10), R=(1, 1), box=(0.3, 0.3, 0.5, 0.5, 0.5, 0.5), doubt=ANOTHER_ORDER,
    m=0.05, R_=0.02, g=GRAVITY, Jb=2e-6,
)  # fmt: skip
def _ball_and_plate(m: float, R_: float, g: float, Jb: float):
    roll = _rolling(m, R_, Jb, g)
    return {(0, 2): 1, (1, 3): 1, (2, 4): roll, (3, 5): roll}, {(4, 0): 1, (5, 1): 1}


@_family(
    "ReactionWheelPendulum", Q=(100, 0.1, 10, 0.1), R=(100,), box=(0.8, 2, 1, 2),
    mp=0.3, mw=0.1, lp=0.25, Jp=0.008, Jw=0.001, bp=0.02, bw=0.005, g=GRAVITY,
)  # fmt: skip
def _reaction_wheel_pendulum(mp: float, lp: float, Jp: float, Jw: float, bp: float, bw: float, g: float, **_: float):
    pull = mp * g * lp
    a = _rates(2) | {
        (2, 0): pull / Jp,
        (2, 2): -bp / Jp,
        (2, 3): bw / Jp,
        (3, 0): -pull / Jw,
        (3, 2): bp / Jw,
        (3, 3): -bw / Jw,
    }
    return a, {(2, 0): -1 / Jp, (3, 0): 1 / Jp + 1 / Jw}


@_family("FlexibleBeam", Q=(100, 100), R=(100,), box=(0.1, 0.5), E=5e8, I=1e-8, L=0.4, m=0.1, c=10.0)
def _flexible_beam(E: float, I: float, L: float, m: float, **_: float):  # noqa: E741
    """The first mode of a cantilever, (1.875 / L)^2 sqrt(E I / m), damped by 4 times its frequency."""
    frequency = 1.875**2 * math.sqrt(E * I / (m * L**4))
    return {(0, 1): 1, (1, 0): -(frequency**2), (1, 1): -4 * frequency}, {(1, 0): 1 / m}


@_family(
    "MagneticLevitation", Q=(100, 10, 0.1), R=(100,), box=(0.02, 0.1, 2), m=0.02, k=0.01, L=0.1, R_=10.0, g=GRAVITY
)
def _magnetic_levitation(m: float, k: float, L: float, R_: float, g: float):
    """Around a gap of 4 cm (2 g / 0.04 = 50 g), with the current that holds the ball there."""
    pull = 50 * k * math.sqrt(m * g / k) / m
    return {(0, 1): 1, (1, 0): 50 * g, (1, 1): -0.1, (1, 2): -pull, (2, 2): -R_ / L}, {(2, 0): 1 / L}


@_family(
    "SuspensionSystem", Q=(100, 10, 10, 100), R=(10,), box=(0.15, 0.1, 1, 2),
    ms=250.0, mu=40.0, ks=10_000, kt=150_000, cs=1_500,
)  # fmt: skip
def _suspension_system(ms: float, mu: float, ks: float, kt: float, cs: float):
    a = _rates(2) | {
        (2, 0): -ks / ms,
        (2, 1): ks / ms,
        (2, 2): -cs / ms,
        (2, 3): cs / ms,
        (3, 0): ks / mu,
        (3, 1): -(ks + kt) / mu,
        (3, 2): cs / mu,
        (3, 3): -cs / mu,
    }
    return a, {(2, 0): 1 / ms, (3, 0): -1 / mu}


@_family("DCMotor", Q=(10, 1, 0.1), R=(1,), box=(2 * math.pi, 10, 2), J=0.01, b=0.1, Kt=0.01, Ke=0.01, R_=1.0, L=0.5)
def _dc_motor(J: float, b: float, Kt: float, Ke: float, R_: float, L: float):
    return {(0, 1): 1, (1, 1): -b / J, (1, 2): Kt / J, (2, 1): -Ke / L, (2, 2): -R_ / L}, {(2, 0): 1 / L}


@_family(
    "TwoLinkArm", Q=(10, 10, 1, 1), R=(1, 1), box=(1, 1, 1.5, 1.5),
    doubt="its mass matrix is indefinite with these numbers: open-loop pole at +9.8",
    m1=1.0, m2=1.0, l1=0.5, l2=0.5, lc1=0.25, lc2=0.25, I1=0.02, I2=0.02, b1=0.1, b2=0.1, g=GRAVITY,
)  # fmt: skip
def _two_link_arm(
    m1: float, m2: float, l1: float, l2: float, lc1: float, lc2: float, I1: float, I2: float,
    b1: float, b2: float, g: float,
):  # fmt: skip
    import numpy as np

    del l2
    first, second, shared = I1 + I2 + m2 * l1**2, I2, I2 + m2 * l1 * lc2
    inverse = np.array([[second, -shared], [-shared, first]]) / (first * second - shared**2)
    pulls = np.diag([-(m1 * lc1 + m2 * l1) * g, -m2 * lc2 * g])
    springs, frictions = inverse @ pulls, inverse @ np.diag([-b1, -b2])
    a, b = dict(_rates(2)), {}
    for row in range(2):
        for col in range(2):
            a[2 + row, col], a[2 + row, 2 + col] = springs[row, col], frictions[row, col]
            b[2 + row, col] = inverse[row, col]
    return a, b


@_family(
    "ThreeLinkManipulator", Q=(10, 10, 10, 1, 1, 1), R=(1, 1, 1), box=(1, 1, 1, 1.5, 1.5, 1.5),
    m1=1.0, m2=1.0, m3=1.0, l1=0.4, l2=0.4, l3=0.4, I1=0.013, I2=0.013, I3=0.013, b1=0.1, b2=0.1, b3=0.1, g=GRAVITY,
)  # fmt: skip
def _three_link_manipulator(
    m1: float, m2: float, m3: float, l1: float, l2: float, l3: float, b1: float, b2: float, b3: float, g: float,
    **_: float,
):  # fmt: skip
    inertias = (
        (m1 + m2 + m3) * l1**2 + (m2 + m3) * l2**2 + m3 * l3**2,
        (m2 + m3) * l2**2 + m3 * l3**2,
        m3 * l3**2,
    )
    pulls = (g * l1 * (m1 / 2 + m2 + m3), g * l2 * (m2 / 2 + m3), g * l3 * m3 / 2)
    return _joints(inertias, pulls, (b1, b2, b3))


def _joints(
    inertias: tuple[float, ...], pulls: tuple[float, ...], frictions: tuple[float, ...]
) -> tuple[dict[tuple[int, int], float], Entries]:
    """Builds joints that do not feel one another: a spring (the weight), a friction and a torque each."""
    count = len(inertias)
    a = dict(_rates(count))
    for joint, (inertia, pull, friction) in enumerate(zip(inertias, pulls, frictions, strict=True)):
        if pull:
            a[count + joint, joint] = -pull / inertia
        a[count + joint, count + joint] = -friction / inertia
    return a, {(count + joint, joint): 1 / inertia for joint, inertia in enumerate(inertias)}


@_family("UnicycleRobot", Q=(10, 10, 5, 1, 1), R=(1, 1), box=(3, 3, 1, 2, 1), v0=1.0, b_v=0.1, b_w=0.1)
def _unicycle_robot(v0: float, b_v: float, b_w: float):
    return {(0, 3): 1, (1, 2): v0, (2, 4): 1, (3, 3): -b_v, (4, 4): -b_w}, {(3, 0): 1, (4, 1): 1}


@_family(
    "DifferentialDriveRobot", Q=(20, 20, 10, 1, 1), R=(10, 10), box=(3, 3, 1, 1, 1), m=5.0, I=0.5, r=0.05, L=0.25, b=1.0
)
def _differential_drive_robot(m: float, r: float, L: float, b: float, **_: float):
    a = {(0, 3): r / 2, (0, 4): r / 2, (1, 2): 1, (2, 3): r / L, (2, 4): -r / L, (3, 3): -b / m, (4, 4): -b / m}
    return a, {(3, 0): 1 / m, (4, 1): 1 / m}


@_family(
    "SCARARobot", Q=(20, 20, 30, 15, 2, 2, 3, 1.5), R=(10,) * 4, box=(1, 1, 0.2, 1, 1.5, 1.5, 0.5, 1),
    m1=2.0, m2=1.5, m3=1.0, l1=0.3, l2=0.25, I1=0.04, I2=0.03, I3=0.01, b1=0.5, b2=0.5, b3=0.3, b4=0.2, g=GRAVITY,
)  # fmt: skip
def _scara_robot(
    m1: float, m2: float, m3: float, l1: float, l2: float, I3: float, b1: float, b2: float, b3: float, b4: float,
    **_: float,
):  # fmt: skip
    return _joints((m1 * l1**2 + m2 * (l1**2 + l2**2), m2 * l2**2, m3, I3), (0,) * 4, (b1, b2, b3, b4))


@_family(
    "SegwayRobot", Q=(10, 100, 10, 10), R=(10,), box=(2, 0.35, 1.5, 1), doubt="gains beyond 1,000",
    M=50.0, m=5.0, L=0.8, r=0.15, Ib=10.0, Iw=0.1, b=0.5, g=GRAVITY,
)  # fmt: skip
def _segway_robot(M: float, m: float, L: float, r: float, Ib: float, b: float, g: float, **_: float):
    mass, inertia = M + m, Ib + M * L**2
    a = _rates(2) | {(2, 1): -M * g * L / mass, (2, 2): -b / mass, (3, 1): g * L / inertia}
    a |= {(3, 2): b * L / (inertia * mass)}
    return a, {(2, 0): 1 / (r * mass), (3, 0): -L / (r * inertia * mass)}


@_family(
    "OmnidirectionalRobot", Q=(20, 20, 10, 2, 2, 1), R=(10,) * 3, box=(3, 3, 1, 2, 2, 1), m=8.0, I=1.0, b_v=1.0, b_w=0.5
)
def _omnidirectional_robot(m: float, I: float, b_v: float, b_w: float):  # noqa: E741
    return _joints((m, m, I), (0, 0, 0), (b_v, b_v, b_w))


@_family("CableDrivenRobot", Q=(50, 50, 5, 5), R=(10,) * 3, box=(1,) * 4, m=2.0, b=0.5, g=GRAVITY)
def _cable_driven_robot(m: float, b: float, **_: float):
    """Three cables, a third of a turn apart."""
    a = _rates(2) | {(2, 2): -b / m, (3, 3): -b / m}
    pulls = {(2, 0): 0.5, (2, 1): -0.25, (2, 2): -0.25, (3, 1): 0.433, (3, 2): -0.433}
    return a, {place: pull / m for place, pull in pulls.items()}


@_family(
    "FlexibleJointRobot", Q=(100, 50, 100, 50), R=(100,), box=(1, 1, 2, 2),
    Jl=0.5, Jm=0.05, k=100.0, bl=0.5, bm=0.1, mgl=5.0,
)  # fmt: skip
def _flexible_joint_robot(Jl: float, Jm: float, k: float, bl: float, bm: float, mgl: float):
    a = _rates(2) | {(2, 0): -(k + mgl) / Jl, (2, 1): k / Jl, (2, 2): -bl / Jl}
    return a | {(3, 0): k / Jm, (3, 1): -k / Jm, (3, 3): -bm / Jm}, {(3, 0): 1 / Jm}


@_family(
    "PlanarBiped", Q=(10, 200, 10, 20), R=(50,), box=(1, 0.35, 1.5, 1),
    m=20.0, L=0.9, I=2.0, b_x=1.0, b_theta=0.5, g=GRAVITY,
)  # fmt: skip
def _planar_biped(m: float, L: float, I: float, b_x: float, b_theta: float, g: float):  # noqa: E741
    inertia = I + m * L**2
    a = _rates(2) | {(2, 1): -g * L, (2, 2): -b_x / m, (2, 3): b_theta / (m * L)}
    a |= {(3, 1): m * g * L / inertia, (3, 2): b_x * L / inertia, (3, 3): -b_theta / inertia}
    return a, {(2, 0): 1 / m, (3, 0): -L / inertia}


SIX_LINKS = (2.0, 1.8, 1.5, 1.0, 0.8, 0.5), (0.4, 0.35, 0.3, 0.25, 0.2, 0.15)
SIX_JOINTS = (0.05, 0.04, 0.03, 0.02, 0.015, 0.01), (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Masses and lengths of the links, inertias and frictions of the joints: no variant changes them."""


@_family("SixDOFManipulator", Q=(15,) * 3 + (10,) * 3 + (2,) * 3 + (1,) * 3, R=(10,) * 6, box=(1,) * 6 + (1.5,) * 6,
         g=GRAVITY)  # fmt: skip
def _six_dof_manipulator(g: float):
    (masses, lengths), (inertias, frictions) = SIX_LINKS, SIX_JOINTS
    beyond = [sum(masses[joint + 1 :]) for joint in range(6)]
    felt = tuple(own + mass * length**2 for own, mass, length in zip(inertias, beyond, lengths, strict=True))
    pulls = tuple(g * length * (m + mass) / 2 for length, m, mass in zip(lengths, masses, beyond, strict=True))
    return _joints(felt, pulls, frictions)


@_family(
    "DualArmRobot", Q=(15,) * 4 + (2,) * 4, R=(10,) * 4, box=(1,) * 4 + (1.5,) * 4,
    m1=1.5, m2=1.0, l1=0.4, l2=0.35, I1=0.03, I2=0.02, b=0.6, g=GRAVITY,
)  # fmt: skip
def _dual_arm_robot(m1: float, m2: float, l1: float, l2: float, I1: float, I2: float, b: float, g: float):
    inertias, pulls = (I1 + I2 + m2 * l1**2, I2), (g * l1 * (m1 / 2 + m2), g * l2 * m2 / 2)
    return _joints(inertias * 2, pulls * 2, (b,) * 4)


@_family(
    "VehicleLateralDynamics", Q=(10, 20, 100, 50), R=(100,), box=(3, 1, 3, 0.5),
    m=1200.0, Iz=2000.0, lf=1.0, lr=1.4, Cf=15_000, Cr=25_000, Vx=15.0,
)  # fmt: skip
def _vehicle_lateral_dynamics(m: float, Iz: float, lf: float, lr: float, Cf: float, Cr: float, Vx: float):
    turn = Cr * lr - Cf * lf
    a = {
        (0, 0): -(Cf + Cr) / (m * Vx),
        (0, 1): turn / (m * Vx) - Vx,
        (1, 0): turn / (Iz * Vx),
        (1, 1): -(Cf * lf**2 + Cr * lr**2) / (Iz * Vx),
        (2, 0): 1,
        (2, 2): -0.01,
        (2, 3): Vx,
        (3, 1): 1,
        (3, 3): -0.01,
    }
    return a, {(0, 0): Cf / m, (1, 0): Cf * lf / Iz}


@_family(
    "LongitudinalCruiseControl", Q=(10, 100), R=(10,), box=(50, 10), doubt="its slow pole is at -0.0013 per second",
    m=1200.0, Cd=0.25, A=2.0, rho=1.225, Cr=0.015, g=GRAVITY,
)  # fmt: skip
def _longitudinal_cruise_control(m: float, Cd: float, A: float, rho: float, Cr: float, g: float):
    """Drag around 15 m/s."""
    return {(0, 1): 1, (1, 1): -15 * rho * Cd * A / m - Cr * g - 0.5}, {(1, 0): 1 / m}


@_family("PlatooningModel", Q=(10, 1) * 3, R=(1,) * 3, box=(15, 5) * 3, tau=0.5, k_p=0.5, k_v=1.0)
def _platooning_model(tau: float, k_p: float, k_v: float):
    a: dict[tuple[int, int], float] = {(2 * car, 2 * car + 1): 1 for car in range(3)}
    a |= {(2 * car + 1, 2 * car + 1): -1 / tau for car in range(3)}
    for car in (1, 2):  # each follows the one before it
        a |= {(2 * car + 1, 2 * car - 2): k_p / tau, (2 * car + 1, 2 * car - 1): k_v / tau}
    return a, {(2 * car + 1, car): 1 for car in range(3)}


@_family(
    "QuadrotorHover", Q=(20, 20, 50, 100, 100, 20, 2, 2, 5, 10, 10, 2), R=(10,) * 4,
    box=(3, 3, 2, 0.35, 0.35, 0.5, 2, 2, 1.5, 1, 1, 1),
    m=0.8, g=GRAVITY, Ix=0.03, Iy=0.03, Iz=0.05, l=0.2, b=1e-6, d=1e-7,
)  # fmt: skip
def _quadrotor_hover(m: float, g: float, Ix: float, Iy: float, Iz: float, **_: float):
    a = _rates(6) | {(6, 4): g, (7, 3): -g} | {(row, row): -0.5 if row < 9 else -0.1 for row in range(6, 12)}
    return a, {(8, 0): 1 / m, (9, 1): 1 / Ix, (10, 2): 1 / Iy, (11, 3): 1 / Iz}


@_family(
    "FixedWingAircraft", Q=(10, 20, 50, 100), R=(100,), box=(10, 5, 0.5, 0.5),
    Xu=-0.2, Xw=0.05, Zu=-0.5, Zw=-3.0, Zq=-8.0, Mu=0.0, Mw=-1.0, Mq=-5.0, g=GRAVITY, U0=30.0,
)  # fmt: skip
def _fixed_wing_aircraft(
    Xu: float, Xw: float, Zu: float, Zw: float, Zq: float, Mu: float, Mw: float, Mq: float, g: float, U0: float
):
    a = {(0, 0): Xu, (0, 1): Xw, (0, 3): -g, (1, 0): Zu, (1, 1): Zw, (1, 2): U0 + Zq}
    return a | {(2, 0): Mu, (2, 1): Mw, (2, 2): Mq, (3, 2): 1, (3, 3): -0.01}, {(0, 0): 0.05, (1, 0): -2, (2, 0): -5}


@_family(
    "VTOLLinearized", Q=(50, 100, 100, 5, 10, 10), R=(10, 10), box=(3, 3, 0.5, 2, 2, 1), m=3.0, J=0.05, g=GRAVITY, l=0.2
)
def _vtol_linearized(m: float, J: float, g: float, **_: float):
    return _rates(3) | {(3, 2): -g, (3, 3): -0.5, (4, 4): -0.5, (5, 5): -0.2}, {(4, 0): 1 / m, (5, 1): 1 / J}


@_family("DoubleIntegrator", Q=(10, 1), R=(1,), box=(5, 3), m=1.0)
def _double_integrator(m: float):
    return {(0, 1): 1}, {(1, 0): 1 / m}


@_family("LotkaVolterra", Q=(10, 10), R=(10, 10), box=(7, 4), alpha=1.0, beta=0.1, gamma=1.5, delta=0.075)
def _lotka_volterra(alpha: float, beta: float, gamma: float, delta: float):
    return {(0, 1): -beta * gamma / delta, (1, 0): alpha * delta / beta}, {(0, 0): 1, (1, 1): 1}


@_family(
    "ChemicalReactor", Q=(200, 10), R=(10,), box=(1.5, 150),
    V=1.0, rho=1_000, Cp=4_180, H=-2e5, k0=7.2e10, E=8_750, UA=5e4, F=0.1, Ca0=10.0, T0=350.0, Tc=300.0,
)  # fmt: skip
def _chemical_reactor(V: float, rho: float, Cp: float, H: float, k0: float, E: float, UA: float, F: float, **_: float):
    """Around 370 K and a concentration of 6."""
    rate = k0 * math.exp(-E / 370)
    slope = 6 * rate * E / 370**2
    a = {(0, 0): -F / V - rate - 0.1, (0, 1): -slope, (1, 0): -H * rate / (rho * Cp)}
    a |= {(1, 1): -F / V - 0.05 - H * slope / (rho * Cp) - UA / (rho * Cp * V)}
    return a, {(1, 0): UA / (rho * Cp * V)}
