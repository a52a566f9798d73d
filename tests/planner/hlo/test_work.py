"""What devices send one another, in modules that are written by hand as NVIDIA's compiler leaves them."""

import itertools

import pytest

from plimsoll.planner.hlo.work import work_of
from written_modules import ANY_MORE, written

BYTES = 4 * 1024
"""Of f32[1024]."""
KERNEL_SECONDS = 2.0
SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
added {
  x = f32[1024] parameter(0)
  ROOT y = f32[1024] add(x, x)
}
"""


def read(text, *, devices=8, link_bytes=BYTES):
    module = written(SUM + text)
    return work_of(module, devices=devices, seconds_of=lambda _kernel: KERNEL_SECONDS, link_bytes=link_bytes)


def kernels(count, of="x"):
    names = [of, *(f"k{number}" for number in range(count))]
    return "".join(
        f"  {name} = f32[1024] fusion({before}), kind=kLoop, calls=added\n"
        for before, name in itertools.pairwise(names)
    )


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("{{0,1}}", 2),
        ("{}", 8),
        ("mesh['a'=4,'b'=2] {'a'}", 4),
        ("mesh['a'=4,'b'=2] {'a','b'}", 8),
        ("mesh['a'=8] {'a':(2)4}", 4),
    ],
)
def test_a_sum_over_a_group_sends_twice_what_a_ring_of_it_passes_on(groups, devices):
    found = read(f"""
ENTRY main {{
  x = f32[1024] parameter(0)
  s = f32[1024] all-reduce-start(x), replica_groups={groups}, to_apply=sum
  ROOT d = f32[1024] all-reduce-done(s)
}}""")
    share = (devices - 1) / devices
    assert found.sent_bytes == pytest.approx(2 * share * BYTES)
    assert found.sending_seconds == found.waited_seconds == pytest.approx(2 * share)
    assert found.kernel_seconds == 0


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}", 4 * 3 / 4),
        ("all-to-all(x), replica_groups={{0,1,2,3}}, dimensions={0}", 3 / 4),
        ("collective-permute(x), source_target_pairs={{0,1},{1,0}}", 1),
    ],
)
def test_what_is_not_started_apart_is_waited_for(collective, factor):
    result = "f32[4096]" if "gather" in collective else "f32[1024]"
    found = read(f"ENTRY main {{\n  x = f32[1024] parameter(0)\n{kernels(1)}  ROOT g = {result} {collective}\n}}")
    assert found.sent_bytes == pytest.approx(factor * BYTES)
    assert found.waited_seconds == found.sending_seconds == pytest.approx(factor)
    assert found.kernel_seconds == KERNEL_SECONDS


SCATTERED = """
scattered {
  a = f32[1024] parameter(0)
  ROOT r = f32[256] reduce-scatter(a), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=sum
}
"""


def test_a_collective_in_a_computation_of_its_own():
    found = read(
        f"""{SCATTERED}
ENTRY main {{
  x = f32[1024] parameter(0)
  s = ((f32[1024]), f32[256], s32[]) async-start(x), calls=scattered
{kernels(1)}  ROOT d = f32[256] async-done(s)
}}""",
        link_bytes=BYTES / 4,
    )
    assert found.sent_bytes == pytest.approx(3 / 4 * BYTES)
    assert found.sending_seconds == pytest.approx(3.0)
    assert found.waited_seconds == pytest.approx(1.0)


@pytest.mark.parametrize(("beside", "waited"), [(0, 3.0), (1, 1.0), (2, 0.0), (5, 0.0)])
def test_kernels_between_start_and_end_run_beside_it(beside, waited):
    """A gather of four takes three seconds, a kernel two."""
    last = f"k{beside - 1}" if beside else "x"
    found = read(f"""
ENTRY main {{
  x = f32[1024] parameter(0)
  s = (f32[1024], f32[4096]) all-gather-start(x), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
{kernels(beside)}  d = f32[4096] all-gather-done(s)
  after = f32[1024] fusion({last}), kind=kLoop, calls=added
  ROOT both = (f32[4096], f32[1024]) tuple(d, after)
}}""")
    assert found.sending_seconds == pytest.approx(3.0)
    assert found.waited_seconds == pytest.approx(waited)
    assert found.kernel_seconds == KERNEL_SECONDS * (beside + 1)


def test_two_share_one_link_and_the_second_waits_for_the_first():
    """Each takes three seconds. After the first kernel one second of the first is left, and all of the second."""
    gather = "all-gather-start(x), replica_groups={{0,1,2,3}}, dimensions={0}"
    found = read(f"""
ENTRY main {{
  x = f32[1024] parameter(0)
  s = (f32[1024], f32[4096]) {gather}
  t = (f32[1024], f32[4096]) {gather}
{kernels(1)}  d = f32[4096] all-gather-done(s)
  k = f32[1024] fusion(k0), kind=kLoop, calls=added
  e = f32[4096] all-gather-done(t)
  ROOT both = (f32[4096], f32[4096], f32[1024]) tuple(d, e, k)
}}""")
    assert found.sending_seconds == pytest.approx(6.0)
    assert found.waited_seconds == pytest.approx(1.0 + 1.0)


def test_the_body_of_a_loop_counts_as_often_as_it_runs_and_its_kernels_run_beside_what_is_outside():
    gather = "all-gather-start(x), replica_groups={{0,1,2,3}}, dimensions={0}"
    found = read(f"""
body {{
  state = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[1024] get-tuple-element(state), index=1
  s = (f32[1024], f32[4096]) {gather}
{kernels(1)}  d = f32[4096] all-gather-done(s)
  ROOT next = (s32[], f32[1024]) tuple(i, k0)
}}
{ANY_MORE}
ENTRY main {{
  state = (s32[], f32[1024]) parameter(0)
  x = f32[1024] get-tuple-element(state), index=1
  s = (f32[1024], f32[4096]) {gather}
  w = (s32[], f32[1024]) while(state), condition=more, body=body, backend_config={{"known_trip_count":{{"n":"5"}}}}
  d = f32[4096] all-gather-done(s)
  ROOT both = (f32[4096], (s32[], f32[1024])) tuple(d, w)
}}""")
    assert found.kernel_seconds >= 5 * KERNEL_SECONDS
    assert found.sending_seconds == pytest.approx(3.0 * 6)
    assert found.waited_seconds == pytest.approx(5 * 1.0)


def test_where_nothing_is_sent():
    found = read(f"ENTRY main {{\n  x = f32[1024] parameter(0)\n{kernels(2)}  ROOT y = f32[1024] copy(k1)\n}}")
    assert found.kernel_seconds == 3 * KERNEL_SECONDS
    assert (found.sent_bytes, found.waited_seconds, found.hidden_share) == (0, 0, 0)


GATHERED = """
fused {
  a = f32[1024] parameter(0)
  b = f32[4096] all-gather(a), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT c = f32[1024] slice(b), slice={[0:1024]}
}
"""
START = "  s = f32[1024] all-reduce-start(x), replica_groups={{0,1,2,3}}, to_apply=sum\n"
RING = 2 * 3 / 4 * BYTES


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ROOT d = f32[1024] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum\n", RING),
        (START + kernels(1) + "ROOT d = f32[1024] all-reduce-done(s)\n", RING),
        ("ROOT f = f32[1024] fusion(x), kind=kOutput, calls=fused\n", 3 * BYTES),
        (
            "f = f32[1024] fusion(x), kind=kOutput, calls=fused\n"
            "ROOT g = f32[1024] fusion(f), kind=kOutput, calls=fused\n",
            3 * BYTES,  # one gathering, in two fusions
        ),
        (kernels(2), 0.0),
    ],
    ids=["at once", "beside a kernel", "in a fusion", "in two", "nothing"],
)
def test_of_a_tpu_what_is_sent_is_counted_once(body, expected):
    module = written(SUM + GATHERED + "ENTRY main {\n  x = f32[1024] parameter(0)\n" + body + "}")
    assert work_of(module, devices=8).sent_bytes == pytest.approx(expected)


def test_of_a_tpu_a_loop_counts_as_often_as_its_condition_says():
    """libtpu notes no count of its rounds."""
    text = """
below {
  p = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT lt = pred[] compare(i, n), direction=LT
}
round {
  p = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1024] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  s = f32[1024] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  ROOT t = (s32[], f32[1024]) tuple(j, s)
}
ENTRY main {
  p = (s32[], f32[1024]) parameter(0)
  ROOT w = (s32[], f32[1024]) while(p), condition=below, body=round
}"""
    assert work_of(written(SUM + text), devices=8).sent_bytes == pytest.approx(5 * RING)
