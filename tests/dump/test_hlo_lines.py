"""Parsing of single instructions and headers of HLO text, as several versions spell them."""

import time

import pytest

from tests.shared.hlo_objects import instruction
from xlapipe.dump.readers.hlo_instruction import InstructionParser
from xlapipe.dump.readers.hlo_spellings import opcode_of
from xlapipe.dump.readers.hlo_syntax import attribute_values, bracket_end, fields, unescape
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.instruction_attributes import canonical_config
from xlapipe.dump.readers.source_lines import source_line
from xlapipe.dump.readers.source_text import LineReader, SourceText
from xlapipe.errors import DumpError
from xlapipe.plans import InputOutputAlias, Instruction, SourceLine
from xlapipe.plans.call_chains import CallChains, Frame, is_own_code
from xlapipe.plans.hlo import Contraction


def parse(line: str) -> Instruction:
    return InstructionParser(LineReader(SourceText("line", line), 1), CallChains()).parse(line)[0]


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("%a = f32[] add(%x.1, %y)", ("x.1", "y")),
        ("%a = f32[] add(f32[] %x.1, f32[]{:S(1)} %y)", ("x.1", "y")),
        ("a = f32[] add(x.1, y)", ("x.1", "y")),
        ("a = f32[] add(f32[2,2]{1,0} x.1, (f32[], s8[4]{0}) y)", ("x.1", "y")),
        ("%a = f32[] add(%x.1#2, %y#0#1)", ("x.1", "y")),
        ("%a = f32[] add((f32[], /*index=5*/f32[]) %x.1, /*index=5*/%y)", ("x.1", "y")),
        ("%a = f32[4]{0} iota(), iota_dimension=0", ()),
        ("%a = c64[2]{0} constant({(1, 2), (-3, nan)})", ()),
    ],
)
def test_operands(line: str, operands: tuple[str, ...]) -> None:
    assert parse(line).operands == operands


def test_every_field() -> None:
    line = (
        "  ROOT %cc = (f32[2]{0:T(8,128)S(1)}, (s8[], token[])) custom-call(%x), "
        'custom_call_target="__cublas$lt$matmul$f8", '
        "replica_groups=mesh['a'=2,'b'=1] {'a'}, dim_labels=b01f_01io->b01f, "
        'sharding={devices=[2,1]<=[2]}, origin={(("x"))}, window={size=1x2 pad=0_0x1_0}, '
        'metadata={op_type="t" op_name="jit(f)/w[\\\'a\\\'] \\"{\\" \\303\\251" '
        'source_file="/a b/m.py" source_line=7 deduplicated_name="d"}, '
        'backend_config={"z":[1.0,2.5],"a":"}\\"{"}, control-predecessors={%q}'
    )
    assert parse(line) == instruction(
        name="cc",
        opcode="custom-call",
        shape="(f32[2]{0:T(8,128)S(1)}, (s8[], token[]))",
        operands=("x",),
        custom_call_target="__cublas$lt$matmul$f8",
        op_name="jit(f)/w['a'] \"{\" é",
        source=SourceLine("/a b/m.py", 7),
        backend_config='{"a":"}\\"{","z":[1,2.5]}',
        contraction=Contraction((0, 1, 2), None, (1, 2, -1)),
    )


def test_called_computations_are_in_xlas_order() -> None:
    loop = "%w = (s32[]) while(%t), condition=%c, body=%b"
    assert parse(loop).called_computations == ("b", "c")
    branch = "%c = (s32[]) conditional(%i, %t, %t), branch_computations={%b0, %b1}"
    assert parse(branch).called_computations == ("b0", "b1")
    scatter = "%s = f32[2]{0} select-and-scatter(%a, %b, %c), select=%ge, scatter=%add"
    assert parse(scatter).called_computations == ("ge", "add")
    custom = '%s = f32[2]{0} custom-call(%a), custom_call_target="x", called_computations={%f}'
    assert parse(custom).called_computations == ("f",)


def test_config_in_mlir_syntax_and_in_quotes() -> None:
    call = '%c = f32[] custom-call(), custom_call_target="x", backend_config='
    line = call + "{lower = true, n = 1 : i64}"
    assert parse(line).backend_config == "{lower = true, n = 1 : i64}"
    line = call + '"a\\"b\\n"'
    assert parse(line).backend_config == 'a"b\n'


@pytest.mark.parametrize(
    ("spelling", "opcode"),
    [
        ("fusion-start", "async-start"),
        ("reduce-scatter-done", "async-done"),
        ("custom-call-update", "async-update"),
        ("all-reduce-start", "all-reduce-start"),
        ("copy-done", "copy-done"),
        ("recv-done", "recv-done"),
        ("dynamic-update-slice", "dynamic-update-slice"),
        ("add", "add"),
    ],
)
def test_opcodes(spelling: str, opcode: str) -> None:
    assert opcode_of(spelling) == opcode


@pytest.mark.parametrize(
    "line",
    [
        "%a = f32[] add(%x, %y",
        "%a = f32[ add",
        "%a = (f32[], add(%x)",
        "%a f32[] add(%x)",
        '%a = f32[] add(%x), metadata={op_name="x',
        '%a = f32[] add(%x), metadata={op_name="x"',
        "%a = f32[] add(%x) kind=kLoop",
        "%p = f32[] parameter(one)",
        f"%p = f32[] parameter({2**63})",
        "%a = f32[] add(%x), metadata={stack_frame_id=two}",
        "",
    ],
)
def test_a_damaged_line_is_an_error(line: str) -> None:
    with pytest.raises(DumpError, match=r"^line:1: expected .*, found "):
        parse(line)


def module(header: str = "", tables: str = "", body: str = "") -> str:
    body = body or "  ROOT %x = f32[] parameter(0)\n"
    return f"HloModule m{header}\n\n{tables}\nENTRY %main (x: f32[]) -> f32[] {{\n{body}}}\n"


def test_aliases_and_donors_of_the_header() -> None:
    text = module(
        ", is_scheduled=true, input_output_alias={ {1}: (2, {}, must-alias), {}: (0, {1, 2}), "
        "{0,1}: (1, {}, may-alias) }, buffer_donor={ (4, {}), (3, {0}) }, "
        'frontend_attributes={a="}"}'
    )
    parsed = parse_hlo(SourceText("m", text))
    assert parsed.aliases == (
        InputOutputAlias(0, (), (1, 2)),
        InputOutputAlias(1, (0, 1)),
        InputOutputAlias(2, (1,), must_alias=True),
    )
    assert parsed.buffer_donors == ((3, (0,)), (4, ()))


@pytest.mark.parametrize("shift", [0, 1])
def test_source_is_the_innermost_frame_of_the_programs_own_code(shift: int) -> None:
    """The text of jaxlib 0.10 to 0.12 has the parent's id plus one; the proto has the id."""
    files = (
        "main.py",
        "/x/lib/python3.12/site-packages/jax/numpy.py",
        "<frozen runpy>",
        "model.py",
    )
    tables = "FileNames\n" + "".join(f'{n} "{f}"\n' for n, f in enumerate(files, 1))
    tables += '\nFunctionNames\n1 "f"\n\nFileLocations\n'
    tables += "".join(
        f"{n} {{file_name_id={n} function_name_id=1 line={n}0 end_line=9}}\n" for n in range(1, 5)
    )
    root = " parent_frame_id=1" if shift else ""
    tables += f"\nStackFrames\n1 {{file_location_id=1{root}}}\n"
    for number, at, parent in ((2, 4, 1), (3, 2, 2), (4, 3, 3), (5, 2, 0)):
        tables += f"{number} {{file_location_id={at} parent_frame_id={parent + shift}}}\n"
    body = "".join(f"  %x{n} = f32[] add(), metadata={{stack_frame_id={n}}}\n" for n in range(1, 6))
    text = module(tables=tables, body=body + "  ROOT %x6 = f32[] add()\n")
    by_name = parse_hlo(SourceText("m", text)).module.computations["main"].by_name
    assert [str(by_name[f"x{n}"].source) for n in range(1, 6)] == [
        "main.py:10",
        "model.py:40",
        "model.py:40",
        "model.py:40",
        "/x/lib/python3.12/site-packages/jax/numpy.py:20",
    ]


def test_a_cycle_of_frames_ends() -> None:
    chains = CallChains([Frame("/site-packages/a.py", 1, 2), Frame("/site-packages/b.py", 2, 1)])
    assert source_line(chains, 1) == SourceLine("/site-packages/a.py", 1)
    assert source_line(chains, 2) == SourceLine("/site-packages/b.py", 2)
    assert source_line(chains, 3) is source_line(chains, 0) is None


def test_own_code() -> None:
    assert is_own_code("model.py")
    assert is_own_code("/home/my-site-packages-project/x.py")
    assert is_own_code("<elsewhere>/model.py")
    assert is_own_code("/usr/src/app/lib/model.py")
    assert not is_own_code("/usr/lib/python3/dist-packages/x.py")
    assert not is_own_code("/opt/python/lib/python3.12/functools.py")
    assert not is_own_code("<site-packages>/flax/nnx/nn/linear.py")  # as capture writes it
    assert not is_own_code("<python>/functools.py")
    assert not is_own_code("C:\\venv\\site-packages\\flax\\nnx.py")
    assert not is_own_code("<frozen importlib._bootstrap>")


def test_get_tuple_elements_are_removed() -> None:
    body = (
        "  %t = (f32[], (f32[], f32[])) parameter(0)\n"
        "  %g.1 = (f32[], f32[]) get-tuple-element(%t), index=1\n"
        "  %g.2 = f32[] get-tuple-element(%g.1), index=0\n"
        "  %a = f32[] add(%g.2, %g.2)\n"
        "  ROOT %g.3 = f32[] get-tuple-element(%g.1), index=0\n"
    )
    main = parse_hlo(SourceText("m", module(body=body))).module.computations["main"]
    assert list(main.by_name) == ["t", "a", "g.3"]
    assert main.by_name["a"].operands == ("t", "t")
    assert main.by_name["g.3"].operands == ("t",)


def test_computations_are_in_the_order_of_calls() -> None:
    text = (
        "HloModule m\n\n%unused () -> f32[] {\n  ROOT %u = f32[] constant(0)\n}\n\n"
        "%b () -> f32[] {\n  ROOT %y = f32[] call(), to_apply=%a\n}\n\n"
        "ENTRY %main () -> f32[] {\n  %c = f32[] call(), to_apply=%b\n"
        "  ROOT %d = f32[] call(), to_apply=%a\n}\n\n"
        '%a () -> f32[] {\n  ROOT %x = f32[] call(), to_apply=%b\n}, execution_thread="main"\n'
    )
    parsed = parse_hlo(SourceText("m", text)).module
    assert list(parsed.computations) == ["unused", "a", "b", "main"]
    assert parsed.entry == "main"


def test_canonical_configs() -> None:
    assert canonical_config('{"b":1.0,"a":[{"d":2,"c":1e-05}]}') == (
        '{"a":[{"c":1e-05,"d":2}],"b":1}'
    )
    assert canonical_config("{not json}") == "{not json}"
    deep = '{"a":' * 100_000
    assert canonical_config(deep) == deep


def test_brackets_attributes_and_strings() -> None:
    assert bracket_end('{"}" {} ([])}x', 0) == 13
    assert bracket_end('{"}', 0) == -1
    text = ', a={x, b=1}, c="x, d=2", e=f[1,2]<=[4], g=1'
    assert [(name, text[start:end]) for name, start, end in attribute_values(text, 0)] == [
        ("a", "{x, b=1}"),
        ("c", '"x, d=2"'),
        ("e", "f[1,2]<=[4]"),
        ("g", "1"),
    ]
    assert fields('{a="x=\\"1 b=2" c=3}') == {"a": 'x="1 b=2', "c": "3"}
    assert unescape(r"\'\"\\\n\t\r\303\251\x41") == "'\"\\\n\t\réA"


@pytest.mark.parametrize(
    "line",
    [
        "%a = f32[] add(%x), metadata={" + '\\"' * 300_000,
        "%a = f32[] add(%x), metadata={" + "a" * 600_000 + "}",
        "%a = f32[] add(" + "(" * 600_000,
        "%a = " + "(" * 600_000,
        "%a = f32[] add(%x), b=" + "{[(" * 200_000,
        "%a = f32[] add(%x)" + ", b" * 200_000,
        "%a = f32[] add(" + "%" * 600_000 + ")",
        "%a = f32[] add(%x), backend_config=" + '{"a":' * 120_000,
        "%a = f32[] add(%x), backend_config={" + '"' * 599_999,
        "%a = f32[] add(%x), custom_call_target=\"" + "\\" * 600_001,
        " " * 600_000,
        "%a = f32[] add(x" + " x" * 300_000 + ")",
    ],
    ids=range(12),
)  # fmt: skip
def test_hostile_lines_are_rejected_in_linear_time(line: str) -> None:
    start = time.process_time()
    try:
        parse(line)
    except DumpError as error:
        assert len(str(error)) < 2000
    assert time.process_time() - start < 5


def test_every_line_end_ends_a_line() -> None:
    """Code with CR alone was one line, and the 20th of it an IndexError."""
    assert SourceText("m", "a\rb\r\nc\n\nd").lines == ["a", "b", "c", "", "d"]
