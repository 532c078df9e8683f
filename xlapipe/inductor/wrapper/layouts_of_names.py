"""The layout of a name: from the wrapper's assertions, other files, or example arguments."""

import ast

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.wrapper.evaluation import sizes_of
from xlapipe.inductor.wrapper.state import WrapperState


def layout_of(state: WrapperState, name: str, node: ast.AST) -> Layout | None:
    """What the code or other files state about the layout of a name.

    Of a call's result, torch may assert the size under the name that it is bound to next.
    """
    stated = (state.gathered.asserted, state.known.layouts, state.code.examples)
    later = state.gathered.renamed.get(name)
    if later is not None and not any(name in source for source in stated):
        name = later
    asserted, known = state.gathered.asserted.get(name), state.known.layouts.get(name)
    dtype = state.gathered.dtypes.get(name)
    layout: Layout | None = None
    if asserted is not None:
        shape, strides = sizes_of(state, asserted.shape), sizes_of(state, asserted.strides)
        if shape is None or strides is None or len(shape) != len(strides):
            state.fail(asserted.shape, "sizes and strides", shown(ast.unparse(asserted.shape)))
        device = known.device if known is not None else "cuda"
        layout = Layout(dtype, shape, strides, device)
    elif known is not None:
        layout = known.resolved(state.frame.symbols)
    example = state.code.examples.get(name)
    if isinstance(example, Layout):
        base = layout if layout is not None and layout.storage_bytes is not None else example
        layout = Layout(base.dtype, base.shape, base.strides, example.device)
    if layout is not None:
        state.check(layout, node)
    return layout
