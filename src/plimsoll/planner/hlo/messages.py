"""Protocol buffers of XLA for compiled modules and their buffers, with only the fields that plimsoll reads.

In Python, XLA's schemas (xla/service/hlo.proto, xla/xla_data.proto) are published only with TensorFlow. The names and
numbers below come from these schemas. The parser skips fields that are not listed.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCHEMA = """
TileProto: dimensions=1 int*
LayoutProto: minor_to_major=1 int*, tiles=6 TileProto*, element_size_in_bits=7 int, memory_space=8 int
ShapeProto: element_type=2 int, dimensions=3 int*, tuple_shapes=4 ShapeProto*, layout=5 LayoutProto
OpMetadata: op_name=2 str, source_file=3 str, source_line=4 int, stack_frame_id=15 int
DotDimensionNumbers: lhs_contracting_dimensions=1 int*, rhs_contracting_dimensions=2 int*
DotDimensionNumbers: lhs_batch_dimensions=3 int*, rhs_batch_dimensions=4 int*
WindowDimension: stride=2 int, padding_low=3 int, padding_high=4 int, window_dilation=5 int, base_dilation=6 int
Window: dimensions=1 WindowDimension*
ConvolutionDimensionNumbers: kernel_output_feature_dimension=4 int, kernel_spatial_dimensions=6 int*
ConvolutionDimensionNumbers: input_batch_dimension=7 int, input_feature_dimension=8 int
ConvolutionDimensionNumbers: input_spatial_dimensions=11 int*, output_spatial_dimensions=12 int*
PrecisionConfig: operand_precision=1 int*, algorithm=2 int
OutputOperandAliasing: output_shape_index=1 int*, operand_index=2 int, operand_shape_index=3 int*
ReplicaGroup: replica_ids=1 int*
IotaReplicaGroupListProto: num_replica_groups=1 int, num_devices_per_group=2 int
CollectiveDeviceListProto: replica_groups=1 ReplicaGroup*
MeshAxis: name=1 str, size=2 int
Mesh: axes=1 MeshAxis*
SubAxis: pre_size=1 int, size=2 int
AxisRef: mesh_axis_index=1 int, sub_axis=2 SubAxis
MeshAxesReplicaGroupListProto: mesh=1 Mesh, axes=2 AxisRef*
HloInstructionProto: collective_device_list=87 CollectiveDeviceListProto
HloInstructionProto: iota_collective_device_list=92 IotaReplicaGroupListProto
HloInstructionProto: mesh_collective_device_list=93 MeshAxesReplicaGroupListProto
HloInstructionProto: opcode=2 str, shape=3 ShapeProto, metadata=7 OpMetadata, parameter_number=9 int
LiteralProto: preds=2 int*, s32s=4 int*, s64s=5 int*, u32s=6 int*, u64s=7 int*
HloInstructionProto: literal=8 LiteralProto, channel_id=26 int, comparison_direction=63 str
HloInstructionProto: tuple_index=13 int, id=35 int, operand_ids=36 int*, called_computation_ids=38 int*
HloInstructionProto: output_operand_aliasing=74 OutputOperandAliasing*, custom_call_target=28 str
HloInstructionProto: dot_dimension_numbers=30 DotDimensionNumbers, backend_config=43 bytes
HloInstructionProto: precision_config=51 PrecisionConfig, window=15 Window, feature_group_count=50 int
HloInstructionProto: convolution_dimension_numbers=16 ConvolutionDimensionNumbers
HloComputationProto: instructions=2 HloInstructionProto*, id=5 int, root_id=6 int
InstructionSequence: instruction_ids=1 int*
SequencesEntry: key=1 int, value=2 InstructionSequence
HloScheduleProto: sequences=1 SequencesEntry*
FileLocation: file_name_id=1 int, line=3 int
StackFrame: file_location_id=1 int, parent_frame_id=2 int
StackFrameIndexProto: file_names=1 str*, file_locations=3 FileLocation*, stack_frames=4 StackFrame*
HloModuleProto: computations=3 HloComputationProto*, entry_computation_id=6 int, schedule=7 HloScheduleProto
HloModuleProto: stack_frame_index=17 StackFrameIndexProto
Location: shape_index=3 int*, instruction_id=4 int
LogicalBufferProto: id=1 int, defined_at=3 Location
BufferAlias: source_buffer_id=1 int, location=2 Location
Assigned: logical_buffer_id=1 int, offset=2 int, size=3 int
BufferAllocationProto: index=1 int, size=2 int, is_thread_local=3 int, is_entry_computation_parameter=5 int
BufferAllocationProto: maybe_live_out=7 int, assigned=9 Assigned*, is_constant=12 int
BufferAssignmentProto: logical_buffers=1 LogicalBufferProto*, buffer_aliases=2 BufferAlias*
BufferAssignmentProto: buffer_allocations=3 BufferAllocationProto*
"""
"""Messages with their fields: name, number and type, and a star for a repeated field. Enums and flags have type int."""


def _classes() -> dict[str, Any]:
    """Builds a class for each message, in its own pool, because TensorFlow uses the same names in the default pool."""
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"int": kinds.TYPE_INT64, "str": kinds.TYPE_STRING, "bytes": kinds.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="plimsoll/hlo.proto", package="plimsoll.hlo", syntax="proto3")
    messages: dict[str, Any] = {}
    for name, fields in (line.split(": ") for line in _SCHEMA.strip().splitlines()):
        message = messages.setdefault(name, descriptor_pb2.DescriptorProto(name=name))
        for field, number, kind, repeated in re.findall(r"(\w+)=(\d+) (\w+)(\*?)", fields):
            described = message.field.add(name=field, number=int(number))
            described.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            described.type = scalars.get(kind, kinds.TYPE_MESSAGE)
            if kind not in scalars:
                described.type_name = f".plimsoll.hlo.{kind}"
    file.message_type.extend(messages.values())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"plimsoll.hlo.{name}")) for name in messages
    }


_BUILT = _classes()
ShapeProto: Any = _BUILT["ShapeProto"]
DotDimensionNumbers: Any = _BUILT["DotDimensionNumbers"]
HloModuleProto: Any = _BUILT["HloModuleProto"]
BufferAssignmentProto: Any = _BUILT["BufferAssignmentProto"]
