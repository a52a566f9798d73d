"""Thirty-five linear systems of control: their matrices as functions of physical parameters, and their costs.

Each family is `x' = A x + B u` around an operating point, with the weights Q and R of its quadratic cost and the box
that its initial states are sampled from. They are those of the published Universal LQR data set, with its signs and its
numbers, where they are physically doubtful too (`Family.doubt` says it): a controller of the system as written is what
there is to imitate. Parameters are SI units, and their defaults the nominal values. A few are in no equation: they are
sampled all the same, since a variant's parameters follow from their order.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # else where it is needed: the command line's help comes through here, and NumPy takes 0.1 s
    import numpy as np

Rows = list[list[float]]
WholeRows = list[list[int]]
Equations = Callable[..., tuple[Rows, Rows | WholeRows]]
"""Function from a family's parameters to the rows of A, and the columns of B, one for each input."""

MOST_STATES, MOST_INPUTS = 12, 6
GRAVITY = 9.81


@dataclass(frozen=True)
class Family:
    """One kind of system."""

    name: str
    parameters: Mapping[str, float]
    state_cost: tuple[float, ...]
    """Diagonal of Q."""
    input_cost: tuple[float, ...]
    """Diagonal of R."""
    box: tuple[float, ...]
    """Half-widths that initial states are sampled from, uniformly."""
    equations: Equations = field(repr=False)
    doubt: str

    @property
    def states(self) -> int:
        return len(self.state_cost)

    @property
    def inputs(self) -> int:
        return len(self.input_cost)

    def matrices(self, parameters: Mapping[str, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns A (states, states) and B (states, inputs) in float64, of the nominal parameters by default."""
        import numpy as np

        a, b = self.equations(**(parameters or self.parameters))
        return np.array(a, float), np.ascontiguousarray(np.array(b, float).T)


FAMILIES: dict[str, Family] = {}
"""Families by name. Their order is part of the seed of their variants."""

UPRIGHT = "described as hanging down, but with the sign of an upright pendulum: unstable"
ANOTHER_ORDER = "initial states are drawn in an order that is not that of the states"
INDEFINITE = "its mass matrix is indefinite with these numbers: open-loop pole at +9.8"


def _family(
    name: str, *, Q: tuple[float, ...], R: tuple[float, ...], box: tuple[float, ...], doubt: str = ""
) -> Callable[[Equations], Equations]:
    """Registers the function below it as the equations of a family."""

    def register(equations: Equations) -> Equations:
        parameters = {each.name: each.default for each in inspect.signature(equations).parameters.values()}
        FAMILIES[name] = Family(name, parameters, Q, R, box, equations, doubt)
        return equations

    return register


def _motion(pulls: Rows, frictions: Rows, pushes: Rows) -> tuple[Rows, Rows]:
    """Returns A and B of positions p, then their rates, for p'' = pulls p + frictions p' + pushes' u.

    `pushes` has a row for each input, as the columns of B.
    """
    count = len(pulls)
    rates = [[0.0] * count + row for row in _diagonal([1.0] * count)]
    accelerations = [pull + friction for pull, friction in zip(pulls, frictions, strict=True)]
    return rates + accelerations, [[0.0] * count + push for push in pushes]


def _diagonal(values: Sequence[float]) -> Rows:
    return [[value if row == col else 0.0 for col in range(len(values))] for row, value in enumerate(values)]


def _joints(inertias: Sequence[float], pulls: Sequence[float], frictions: Sequence[float]) -> tuple[Rows, Rows]:
    """Returns A and B of joints that do not feel one another: each has its weight's pull, a friction and a torque."""
    return _motion(
        _diagonal([-pull / inertia for pull, inertia in zip(pulls, inertias, strict=True)]),
        _diagonal([-friction / inertia for friction, inertia in zip(frictions, inertias, strict=True)]),
        _diagonal([1 / inertia for inertia in inertias]),
    )


@_family("MassSpringDamper", Q=(10, 1), R=(1,), box=(2, 2))
def _mass_spring_damper(m=1.0, c=0.5, k=2.0):
    return _motion([[-k / m]], [[-c / m]], [[1 / m]])


@_family("SimplePendulum", Q=(20, 1), R=(1,), box=(1, 2), doubt=UPRIGHT)
def _pendulum(m=1.0, length=1.0, b=0.1, g=GRAVITY):
    inertia = m * length**2
    return _motion([[g / length]], [[-b / inertia]], [[1 / inertia]])


@_family("InvertedPendulum", Q=(50, 5), R=(10,), box=(0.4, 1))
def _inverted_pendulum(m=0.5, length=0.5, b=0.05, g=GRAVITY):
    return _pendulum(m, length, b, g)


@_family("DoublePendulum", Q=(10,) * 4, R=(10,), box=(0.8, 0.8, 1.5, 1.5), doubt=UPRIGHT)
def _double_pendulum(m1=1.0, m2=1.0, l1=1.0, l2=1.0, b1=0.1, b2=0.1, g=GRAVITY):
    weight = g * (m1 + m2)
    return _motion(
        [[weight / (l1 * m1), -g * m2 / (l1 * m1)], [-weight / (l2 * m2), weight / (l2 * m2)]],
        _diagonal([-b1 / (m1 * l1**2), -b2 / (m2 * l2**2)]),
        [[1 / (m1 * l1**2), 0]],
    )


@_family("CartPole", Q=(10, 1, 100, 10), R=(10,), box=(2, 1, 0.5, 1))
def _cart_pole(M=1.0, m=0.3, length=0.5, b=0.1, g=GRAVITY):
    a = [
        [0, 1, 0, 0],
        [0, -b / M, -m * g / M, 0],
        [0, 0, 0, 1],
        [0, b / (M * length), (M + m) * g / (M * length), 0],
    ]
    return a, [[0, 1 / M, 0, -1 / (M * length)]]


@_family("Acrobot", Q=(15, 15, 2, 2), R=(10,), box=(1, 1, 2, 2), doubt=UPRIGHT)
def _acrobot(m1=1.0, m2=1.0, l1=1.0, l2=1.0, lc1=0.5, lc2=0.5, I1=0.083, I2=0.083, g=GRAVITY):
    pulls = [[g * (m1 + m2) / l1, -g * m2 / l1], [-g / l2, g / l2]]
    return _motion(pulls, _diagonal([0, 0]), [[0, 1 / (m2 * l2**2)]])


@_family("FurutaPendulum", Q=(1, 100, 1, 10), R=(10,), box=(1, 0.5, 1.5, 1))
def _furuta_pendulum(Jr=0.05, Jp=0.01, mp=0.15, lp=0.2, lr=0.15, br=0.02, bp=0.005, g=GRAVITY):
    arm = Jr + mp * lr**2
    return _motion(
        _diagonal([0, mp * g * lp / Jp]),
        _diagonal([-br / arm, -bp / Jp]),
        [[1 / arm, lr / (Jp * lp)]],
    )


def _roll(m: float, R_: float, Jb: float, g: float) -> float:
    """Returns the acceleration of a ball per radian of its support."""
    return -m * g * R_**2 / (Jb + m * R_**2)


@_family("BallAndBeam", Q=(20, 2, 10, 1), R=(1,), box=(0.5,) * 4, doubt=ANOTHER_ORDER)
def _ball_and_beam(m=0.05, R_=0.02, Jb=2e-6, L=0.5, g=GRAVITY):
    a = [[0, 1, 0, 0], [0, 0, _roll(m, R_, Jb, g), 0], [0, 0, 0, 1], [0] * 4]
    return a, [[0, 0, 0, 1]]


@_family(
    "BallAndPlate",
    Q=(20, 20, 2, 2, 10, 10),
    R=(1, 1),
    box=(0.3, 0.3, 0.5, 0.5, 0.5, 0.5),
    doubt=ANOTHER_ORDER,
)
def _ball_and_plate(m=0.05, R_=0.02, g=GRAVITY, Jb=2e-6):
    roll = _roll(m, R_, Jb, g)
    rates = [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    accelerations = [[0, 0, 0, 0, roll, 0], [0, 0, 0, 0, 0, roll]]
    return [*rates, *accelerations, [0] * 6, [0] * 6], [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]


@_family("ReactionWheelPendulum", Q=(100, 0.1, 10, 0.1), R=(100,), box=(0.8, 2, 1, 2))
def _reaction_wheel_pendulum(mp=0.3, mw=0.1, lp=0.25, Jp=0.008, Jw=0.001, bp=0.02, bw=0.005, g=GRAVITY):
    pull = mp * g * lp
    return _motion(
        [[pull / Jp, 0], [-pull / Jw, 0]],
        [[-bp / Jp, bw / Jp], [bp / Jw, -bw / Jw]],
        [[-1 / Jp, 1 / Jp + 1 / Jw]],
    )


@_family("FlexibleBeam", Q=(100, 100), R=(100,), box=(0.1, 0.5))
def _flexible_beam(E=5e8, area=1e-8, L=0.4, m=0.1, c=10.0):
    # The first mode of a cantilever, (1.875 / L)^2 sqrt(E I / m), damped by 4 times as much; I is the moment of area.
    frequency = 1.875**2 * math.sqrt(E * area / (m * L**4))
    return _motion([[-(frequency**2)]], [[-4 * frequency]], [[1 / m]])


@_family("MagneticLevitation", Q=(100, 10, 0.1), R=(100,), box=(0.02, 0.1, 2))
def _magnetic_levitation(m=0.02, k=0.01, L=0.1, R_=10.0, g=GRAVITY):
    # Around a gap of 4 cm (2 g / 0.04 = 50 g), with the current that holds the ball.
    pull = 50 * k * math.sqrt(m * g / k) / m
    return [[0, 1, 0], [50 * g, -0.1, -pull], [0, 0, -R_ / L]], [[0, 0, 1 / L]]


@_family("SuspensionSystem", Q=(100, 10, 10, 100), R=(10,), box=(0.15, 0.1, 1, 2))
def _suspension(ms=250.0, mu=40.0, ks=10_000, kt=150_000, cs=1_500):
    return _motion(
        [[-ks / ms, ks / ms], [ks / mu, -(ks + kt) / mu]],
        [[-cs / ms, cs / ms], [cs / mu, -cs / mu]],
        [[1 / ms, -1 / mu]],
    )


@_family("DCMotor", Q=(10, 1, 0.1), R=(1,), box=(2 * math.pi, 10, 2))
def _dc_motor(J=0.01, b=0.1, Kt=0.01, Ke=0.01, R_=1.0, L=0.5):
    return [[0, 1, 0], [0, -b / J, Kt / J], [0, -Ke / L, -R_ / L]], [[0, 0, 1 / L]]


@_family("TwoLinkArm", Q=(10, 10, 1, 1), R=(1, 1), box=(1, 1, 1.5, 1.5), doubt=INDEFINITE)
def _two_link_arm(m1=1.0, m2=1.0, l1=0.5, l2=0.5, lc1=0.25, lc2=0.25, I1=0.02, I2=0.02, b1=0.1, b2=0.1, g=GRAVITY):
    # The mass matrix, [[first, shared], [shared, second]], and its inverse.
    first = I1 + I2 + m2 * l1**2
    second = I2
    shared = I2 + m2 * l1 * lc2
    determinant = first * second - shared**2
    inverse = [[second / determinant, -shared / determinant], [-shared / determinant, first / determinant]]

    def times(shoulder: float, elbow: float) -> Rows:
        return [[row[0] * shoulder, row[1] * elbow] for row in inverse]

    return _motion(times(-(m1 * lc1 + m2 * l1) * g, -m2 * lc2 * g), times(-b1, -b2), inverse)


@_family("ThreeLinkManipulator", Q=(10, 10, 10, 1, 1, 1), R=(1, 1, 1), box=(1, 1, 1, 1.5, 1.5, 1.5))
def _three_link_manipulator(
    m1=1.0, m2=1.0, m3=1.0, l1=0.4, l2=0.4, l3=0.4, I1=0.013, I2=0.013, I3=0.013, b1=0.1, b2=0.1, b3=0.1, g=GRAVITY
):
    wrist = m3 * l3**2
    elbow = (m2 + m3) * l2**2 + wrist
    shoulder = (m1 + m2 + m3) * l1**2 + (m2 + m3) * l2**2 + wrist
    pulls = g * l1 * (m1 / 2 + m2 + m3), g * l2 * (m2 / 2 + m3), g * l3 * m3 / 2
    return _joints((shoulder, elbow, wrist), pulls, (b1, b2, b3))


@_family("UnicycleRobot", Q=(10, 10, 5, 1, 1), R=(1, 1), box=(3, 3, 1, 2, 1))
def _unicycle(v0=1.0, b_v=0.1, b_w=0.1):
    a = [[0, 0, 0, 1, 0], [0, 0, v0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, -b_v, 0], [0, 0, 0, 0, -b_w]]
    return a, [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


@_family("DifferentialDriveRobot", Q=(20, 20, 10, 1, 1), R=(10, 10), box=(3, 3, 1, 1, 1))
def _differential_drive(m=5.0, inertia=0.5, r=0.05, L=0.25, b=1.0):
    a = [
        [0, 0, 0, r / 2, r / 2],
        [0, 0, 1, 0, 0],
        [0, 0, 0, r / L, -r / L],
        [0, 0, 0, -b / m, 0],
        [0, 0, 0, 0, -b / m],
    ]
    return a, [[0, 0, 0, 1 / m, 0], [0, 0, 0, 0, 1 / m]]


@_family("SCARARobot", Q=(20, 20, 30, 15, 2, 2, 3, 1.5), R=(10,) * 4, box=(1, 1, 0.2, 1, 1.5, 1.5, 0.5, 1))
def _scara(
    m1=2.0, m2=1.5, m3=1.0, l1=0.3, l2=0.25, I1=0.04, I2=0.03, I3=0.01, b1=0.5, b2=0.5, b3=0.3, b4=0.2, g=GRAVITY
):
    inertias = m1 * l1**2 + m2 * (l1**2 + l2**2), m2 * l2**2, m3, I3
    return _joints(inertias, (0,) * 4, (b1, b2, b3, b4))


@_family("SegwayRobot", Q=(10, 100, 10, 10), R=(10,), box=(2, 0.35, 1.5, 1), doubt="gains beyond 1,000")
def _segway(M=50.0, m=5.0, L=0.8, r=0.15, Ib=10.0, Iw=0.1, b=0.5, g=GRAVITY):
    mass = M + m
    inertia = Ib + M * L**2
    return _motion(
        [[0, -M * g * L / mass], [0, g * L / inertia]],
        [[-b / mass, 0], [b * L / (inertia * mass), 0]],
        [[1 / (r * mass), -L / (r * inertia * mass)]],
    )


@_family("OmnidirectionalRobot", Q=(20, 20, 10, 2, 2, 1), R=(10,) * 3, box=(3, 3, 1, 2, 2, 1))
def _omnidirectional(m=8.0, inertia=1.0, b_v=1.0, b_w=0.5):
    return _joints((m, m, inertia), (0, 0, 0), (b_v, b_v, b_w))


@_family("CableDrivenRobot", Q=(50, 50, 5, 5), R=(10,) * 3, box=(1,) * 4)
def _cable_driven(m=2.0, b=0.5, g=GRAVITY):
    # Three cables, a third of a turn apart.
    pushes = [[0.5 / m, 0], [-0.25 / m, 0.433 / m], [-0.25 / m, -0.433 / m]]
    return _motion(_diagonal([0, 0]), _diagonal([-b / m, -b / m]), pushes)


@_family("FlexibleJointRobot", Q=(100, 50, 100, 50), R=(100,), box=(1, 1, 2, 2))
def _flexible_joint(Jl=0.5, Jm=0.05, k=100.0, bl=0.5, bm=0.1, mgl=5.0):
    pulls = [[-(k + mgl) / Jl, k / Jl], [k / Jm, -k / Jm]]
    return _motion(pulls, _diagonal([-bl / Jl, -bm / Jm]), [[0, 1 / Jm]])


@_family("PlanarBiped", Q=(10, 200, 10, 20), R=(50,), box=(1, 0.35, 1.5, 1))
def _planar_biped(m=20.0, L=0.9, inertia=2.0, b_x=1.0, b_theta=0.5, g=GRAVITY):
    about_foot = inertia + m * L**2
    return _motion(
        [[0, -g * L], [0, m * g * L / about_foot]],
        [[-b_x / m, b_theta / (m * L)], [b_x * L / about_foot, -b_theta / about_foot]],
        [[1 / m, -L / about_foot]],
    )


SIX_MASSES, SIX_LENGTHS = (2.0, 1.8, 1.5, 1.0, 0.8, 0.5), (0.4, 0.35, 0.3, 0.25, 0.2, 0.15)
SIX_INERTIAS, SIX_FRICTIONS = (0.05, 0.04, 0.03, 0.02, 0.015, 0.01), (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Of the links, and of their joints: no variant changes them."""


@_family(
    "SixDOFManipulator",
    Q=(15,) * 3 + (10,) * 3 + (2,) * 3 + (1,) * 3,
    R=(10,) * 6,
    box=(1,) * 6 + (1.5,) * 6,
)
def _six_dof_manipulator(g=GRAVITY):
    inertias = []
    pulls = []
    for joint, (mass, length) in enumerate(zip(SIX_MASSES, SIX_LENGTHS, strict=True)):
        beyond = sum(SIX_MASSES[joint + 1 :])
        inertias.append(SIX_INERTIAS[joint] + beyond * length**2)
        pulls.append(g * length * (mass + beyond) / 2)
    return _joints(inertias, pulls, SIX_FRICTIONS)


@_family("DualArmRobot", Q=(15,) * 4 + (2,) * 4, R=(10,) * 4, box=(1,) * 4 + (1.5,) * 4)
def _dual_arm(m1=1.5, m2=1.0, l1=0.4, l2=0.35, I1=0.03, I2=0.02, b=0.6, g=GRAVITY):
    inertias = I1 + I2 + m2 * l1**2, I2
    pulls = g * l1 * (m1 / 2 + m2), g * l2 * m2 / 2
    return _joints(inertias * 2, pulls * 2, (b,) * 4)


@_family("VehicleLateralDynamics", Q=(10, 20, 100, 50), R=(100,), box=(3, 1, 3, 0.5))
def _vehicle_lateral(m=1200.0, Iz=2000.0, lf=1.0, lr=1.4, Cf=15_000, Cr=25_000, Vx=15.0):
    turn = Cr * lr - Cf * lf
    a = [
        [-(Cf + Cr) / (m * Vx), turn / (m * Vx) - Vx, 0, 0],
        [turn / (Iz * Vx), -(Cf * lf**2 + Cr * lr**2) / (Iz * Vx), 0, 0],
        [1, 0, -0.01, Vx],
        [0, 1, 0, -0.01],
    ]
    return a, [[Cf / m, Cf * lf / Iz, 0, 0]]


@_family(
    "LongitudinalCruiseControl",
    Q=(10, 100),
    R=(10,),
    box=(50, 10),
    doubt="its slow pole is at -0.0013 per second",
)
def _cruise_control(m=1200.0, Cd=0.25, A=2.0, rho=1.225, Cr=0.015, g=GRAVITY):
    # Drag around 15 m/s.
    drag = -15 * rho * Cd * A / m - Cr * g - 0.5
    return _motion([[0]], [[drag]], [[1 / m]])


@_family("PlatooningModel", Q=(10, 1) * 3, R=(1,) * 3, box=(15, 5) * 3)
def _platoon(tau=0.5, k_p=0.5, k_v=1.0):
    # Three cars, each with its position and its speed; the second and the third follow the one before them.
    position = k_p / tau
    speed = k_v / tau
    friction = -1 / tau
    a = [
        [0, 1, 0, 0, 0, 0],
        [0, friction, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [position, speed, 0, friction, 0, 0],
        [0, 0, 0, 0, 0, 1],
        [0, 0, position, speed, 0, friction],
    ]
    return a, [[0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]


@_family(
    "QuadrotorHover",
    Q=(20, 20, 50, 100, 100, 20, 2, 2, 5, 10, 10, 2),
    R=(10,) * 4,
    box=(3, 3, 2, 0.35, 0.35, 0.5, 2, 2, 1.5, 1, 1, 1),
)
def _quadrotor(m=0.8, g=GRAVITY, Ix=0.03, Iy=0.03, Iz=0.05, length=0.2, b=1e-6, d=1e-7):
    tilt = [[0.0, 0, 0, 0, g, 0], [0.0, 0, 0, -g, 0, 0]]
    lift_and_turn = _diagonal([1 / m, 1 / Ix, 1 / Iy, 1 / Iz])
    return _motion(
        [*tilt, *[[0.0] * 6] * 4],
        _diagonal([-0.5] * 3 + [-0.1] * 3),
        [[0, 0, *push] for push in lift_and_turn],
    )


@_family("FixedWingAircraft", Q=(10, 20, 50, 100), R=(100,), box=(10, 5, 0.5, 0.5))
def _fixed_wing(Xu=-0.2, Xw=0.05, Zu=-0.5, Zw=-3.0, Zq=-8.0, Mu=0.0, Mw=-1.0, Mq=-5.0, g=GRAVITY, U0=30.0):
    a = [[Xu, Xw, 0, -g], [Zu, Zw, U0 + Zq, 0], [Mu, Mw, Mq, 0], [0, 0, 1, -0.01]]
    return a, [[0.05, -2, -5, 0]]


@_family("VTOLLinearized", Q=(50, 100, 100, 5, 10, 10), R=(10, 10), box=(3, 3, 0.5, 2, 2, 1))
def _vtol(m=3.0, J=0.05, g=GRAVITY, length=0.2):
    pulls = [[0, 0, -g], [0] * 3, [0] * 3]
    return _motion(pulls, _diagonal([-0.5, -0.5, -0.2]), [[0, 1 / m, 0], [0, 0, 1 / J]])


@_family("DoubleIntegrator", Q=(10, 1), R=(1,), box=(5, 3))
def _double_integrator(m=1.0):
    return _motion([[0]], [[0]], [[1 / m]])


@_family("LotkaVolterra", Q=(10, 10), R=(10, 10), box=(7, 4))
def _lotka_volterra(alpha=1.0, beta=0.1, gamma=1.5, delta=0.075):
    return [[0, -beta * gamma / delta], [alpha * delta / beta, 0]], [[1, 0], [0, 1]]


@_family("ChemicalReactor", Q=(200, 10), R=(10,), box=(1.5, 150))
def _chemical_reactor(
    V=1.0, rho=1_000, Cp=4_180, H=-2e5, k0=7.2e10, E=8_750, UA=5e4, F=0.1, Ca0=10.0, T0=350.0, Tc=300.0
):
    # Around 370 K and a concentration of 6.
    rate = k0 * math.exp(-E / 370)
    slope = 6 * rate * E / 370**2
    heat = rho * Cp
    a = [
        [-F / V - rate - 0.1, -slope],
        [-H * rate / heat, -F / V - 0.05 - H * slope / heat - UA / (heat * V)],
    ]
    return a, [[0, UA / (heat * V)]]
