"""How many pieces onnxruntime would cut a graph into, each run by the CoreML provider on its own."""

from collections import deque
from collections.abc import Callable

from onnx import GraphProto, NodeProto


def count_partitions(graph: GraphProto, is_taken: Callable[[NodeProto], bool]) -> int:
    """The number of groups of taken nodes. A group grows until only nodes that hang on it and are not taken are left.

    Source: CreateSupportedPartitionNodeGroups in onnxruntime's partitioning_utils.cc.
    """
    readers, waiting_for = _edges(graph)
    ready = deque(i for i, count in enumerate(waiting_for) if not count)
    postponed: deque[int] = deque()
    groups, group_size, border = 0, 0, set[int]()
    while ready or postponed:
        if not ready:
            groups, group_size, border = groups + (group_size > 0), 0, set()
            ready, postponed = postponed, ready
        index = ready.popleft()
        taken = is_taken(graph.node[index])
        if not taken and index in border:
            postponed.append(index)
            continue
        group_size += taken
        for reader in readers[index]:
            if taken:
                border.add(reader)
            waiting_for[reader] -= 1
            if not waiting_for[reader]:
                ready.append(reader)
    return groups + (group_size > 0)


def _edges(graph: GraphProto) -> tuple[list[list[int]], list[int]]:
    """Per node its readers, once for every value that they read, and how many such values it waits for itself."""
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output}
    readers: list[list[int]] = [[] for _ in graph.node]
    waiting_for = [0] * len(graph.node)
    for i, node in enumerate(graph.node):
        for name in node.input:
            if name in producer:
                readers[producer[name]].append(i)
                waiting_for[i] += 1
    return readers, waiting_for
