"""When values are alive and which share their bytes, in modules of a few instructions, by hand."""

import pytest

from plimsoll.planner.hlo.buffers import Place, _named, at_peak, scheduled
from plimsoll.planner.hlo.lifetimes import Lifetimes
from plimsoll.planner.hlo.messages import HloModuleProto
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.values import Values

F32, TUPLE = 11, 13


def floats(count, memory_space=0):
    return {"element_type": F32, "dimensions": [count], "layout": {"memory_space": memory_space}}


def several(*shapes):
    return {"element_type": TUPLE, "tuple_shapes": list(shapes)}


def step(identity, opcode, *operands, shape=8, calls=(), **more):
    """An instruction whose result has so many numbers, or that shape."""
    shape = floats(shape) if isinstance(shape, int) else shape
    made = {"id": identity, "opcode": opcode, "operand_ids": operands, "called_computation_ids": calls}
    return made | {"shape": shape} | more


def module(*computations, unscheduled=()):
    """Computations 1, 2, ..., each a list of instructions in the order they run; the last is the result."""
    made = [
        {"id": number, "root_id": steps[-1]["id"], "instructions": steps}
        for number, steps in enumerate(computations, 1)
    ]
    order = [
        {"key": each["id"], "value": {"instruction_ids": [one["id"] for one in each["instructions"]]}}
        for each in made if each["id"] not in unscheduled
    ]  # fmt: skip
    message = HloModuleProto(computations=made, entry_computation_id=1, schedule={"sequences": order})
    return Module(message.SerializeToString())


def shared(found):
    """Bytes of each class of temporaries, with the instructions whose values are in it."""
    return sorted((size, sorted(values)) for size, values in Values(found).temporary())


@pytest.mark.parametrize("opcode", ["bitcast", "optimization-barrier"])
def test_a_use_of_what_only_passes_a_value_on_is_a_use_of_the_value(opcode):
    found = Lifetimes(module([step(1, "parameter"), step(2, opcode, 1), step(3, "sine", 1), step(4, "add", 3, 2)]))
    assert found.of((1, ())) == (0, 3)
    plain = Lifetimes(module([step(1, "parameter"), step(2, "copy", 1), step(3, "sine", 1), step(4, "add", 3, 2)]))
    assert plain.of((1, ())) == (0, 2)


def test_an_element_of_a_tuple_is_used_where_that_element_is():
    """Of a tuple of 2 and 3 the first is read at 5, the second at 7."""
    both = several(floats(8), floats(4))
    found = Lifetimes(module([
        step(1, "parameter"), step(2, "sine", 1), step(3, "cosine", 1, shape=4), step(4, "tuple", 2, 3, shape=both),
        step(5, "get-tuple-element", 4, tuple_index=0), step(6, "negate", 5), step(7, "get-tuple-element", 4,
        tuple_index=1, shape=4), step(8, "dot", 6, 7),
    ]))  # fmt: skip
    assert found.of((2, ())) == (1, 5)
    assert found.of((3, ())) == (2, 7)
    assert found.of((4, (0,))) == (3, 5)
    assert found.of((4, (1,))) == (3, 7)
    assert found.of((4, ())) == (3, 6)


def loop():
    """while (counts 3 times): its state is a product, multiplied by itself in the body; 0 is its operand's end."""
    body = [step(20, "parameter"), step(21, "dot", 20, 20), step(22, "negate", 21)]
    condition = [step(30, "parameter"), step(31, "compare", 30, shape=1)]
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "while", 2, calls=[2, 3]), step(4, "sine", 1),
        step(5, "add", 3, 4),
    ]  # fmt: skip
    return module(entry, body, condition)


def test_a_loop_takes_its_state_over_and_its_bodys_result_is_needed_until_it_is_done():
    """0 parameter, 1 dot; 2 to 4 the body, 5 and 6 the condition, 7 the loop itself, 8 sine, 9 sum."""
    found = Lifetimes(loop())
    alive = {identity: found.of((identity, ())) for identity in (1, 2, 20, 21, 22, 30, 31, 3, 4, 5)}
    assert alive == {
        1: (0, 8), 2: (1, 2), 20: (2, 3), 21: (3, 4), 22: (4, 7), 30: (5, 6), 31: (6, 7), 3: (7, 9), 4: (8, 9),
        5: (9, 10),
    }  # fmt: skip


def test_the_state_of_a_loop_is_in_the_same_bytes_from_its_operand_to_its_result():
    state = [(2, ()), (3, ()), (20, ()), (22, ()), (30, ())]
    assert shared(loop()) == [(4, [(31, ())]), (32, state), (32, [(4, ())]), (32, [(21, ())])]


def test_branches_have_an_operand_each_and_write_into_the_same_result():
    first = [step(20, "parameter"), step(21, "sine", 20)]
    second = [step(30, "parameter", shape=4), step(31, "broadcast", 30), step(32, "cosine", 31)]
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "dot", 1, shape=4), step(4, "compare", 1, shape=1),
        step(5, "conditional", 4, 2, 3, calls=[2, 3]), step(6, "negate", 5),
    ]  # fmt: skip
    assert shared(module(entry, first, second)) == [
        (4, [(4, ())]), (16, [(3, ()), (30, ())]), (32, [(2, ()), (20, ())]), (32, [(5, ()), (21, ()), (32, ())]),
        (32, [(31, ())]),
    ]  # fmt: skip


def test_what_is_called_has_its_callers_operands_and_result():
    called = [
        step(20, "parameter", parameter_number=1, shape=4), step(21, "parameter", parameter_number=0),
        step(22, "dot", 20, 21, shape=6),
    ]  # fmt: skip
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "dot", 1, shape=4), step(4, "call", 2, 3, calls=[2], shape=6),
        step(5, "negate", 4, shape=2),
    ]  # fmt: skip
    assert shared(module(entry, called)) == [
        (16, [(3, ()), (20, ())]),
        (24, [(4, ()), (22, ())]),
        (32, [(2, ()), (21, ())]),
    ]


def fusion(*fused, shape=8, operands=(2, 3)):
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "dot", 1),
        step(4, "fusion", *operands, calls=[2], shape=shape), step(5, "negate", 1, shape=2),
    ]  # fmt: skip
    return module(entry, list(fused), unscheduled=[2])


UPDATED = [
    step(20, "parameter", parameter_number=0), step(21, "parameter", parameter_number=1), step(22, "bitcast", 21),
    step(23, "dynamic-update-slice", 22, 20), step(24, "bitcast", 23),
]  # fmt: skip


def test_a_fusion_that_updates_an_operand_writes_into_it_behind_bitcasts_too():
    assert shared(fusion(*UPDATED[:4])) == [(32, [(2, ())]), (32, [(3, ()), (4, ())])]
    assert shared(fusion(*UPDATED)) == [(32, [(2, ())]), (32, [(3, ()), (4, ())])]


def test_a_fusion_that_updates_what_it_made_itself_writes_into_bytes_of_its_own():
    made = [*UPDATED[:2], step(22, "sine", 21), step(23, "dynamic-update-slice", 22, 20)]
    for fused in (made, [*UPDATED[:2], step(23, "add", 20, 21)]):
        assert shared(fusion(*fused)) == [(32, [(2, ())]), (32, [(3, ())]), (32, [(4, ())])]


def test_what_an_instruction_says_of_its_aliases_counts():
    both = several(floats(8), floats(8))
    alias = [{"output_shape_index": [1], "operand_index": 1, "operand_shape_index": []}]
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "dot", 1),
        step(4, "custom-call", 2, 3, shape=both, output_operand_aliasing=alias), step(5, "negate", 1, shape=2),
    ]  # fmt: skip
    assert shared(module(entry)) == [(32, [(2, ())]), (32, [(3, ()), (4, (1,))]), (32, [(4, (0,))])]


def test_arguments_results_constants_and_other_memories_are_no_temporaries():
    entry = [
        step(1, "parameter"), step(2, "constant"), step(3, "bitcast", 1), step(4, "dot", 1, 2, shape=floats(8, 1)),
        step(5, "dot", 4, shape=floats(0)), step(6, "dot", 5, shape=3), step(7, "negate", 6),
    ]  # fmt: skip
    assert shared(module(entry)) == [(12, [(6, ())])]


def test_the_peak_is_the_largest_union_of_what_is_alive_and_the_first_of_equals():
    """Dots of 8 and 4 at 1 and 2, both read at 3; a third of 8 at 4, alone with 6 more at 5."""
    entry = [
        step(1, "parameter"), step(2, "dot", 1), step(3, "dot", 1, shape=4), step(4, "add", 2, 3, shape=2),
        step(5, "dot", 4), step(6, "dot", 4, shape=4), step(7, "add", 5, 6, shape=1),
    ]  # fmt: skip
    assert [(one.bytes, one.what) for one in scheduled(module(entry))] == [(32, "dot"), (16, "dot"), (8, "add")]
    lifetimes = Lifetimes(module(entry))
    places = [Place(0, 0, 32, [(2, ()), (5, ())]), Place(0, 32, 16, [(3, ())]), Place(0, 48, 16, [(6, ())])]
    peak = at_peak(places, lifetimes, {})
    assert [(place.offset, place.size, place.values) for place in peak] == [(0, 32, [(2, ())]), (32, 16, [(3, ())])]


def test_of_overlapping_places_the_larger_is_listed_and_neighbours_both():
    entry = [step(1, "parameter"), *(step(n, "dot", 1) for n in (2, 3, 4, 5)), step(6, "negate", 1)]
    places = [
        Place(0, 0, 40, [(2, ())]), Place(0, 39, 20, [(3, ())]), Place(0, 40, 30, [(4, ())]), Place(1, 0, 10, [(5, ())])
    ]  # fmt: skip
    assert [one.bytes for one in _named(places, module(entry))] == [40, 30, 10]
    before = [Place(0, 40, 50, [(2, ())]), Place(0, 10, 30, [(3, ())]), Place(0, 0, 11, [(4, ())])]
    assert [one.bytes for one in _named(before, module(entry))] == [50, 30]
