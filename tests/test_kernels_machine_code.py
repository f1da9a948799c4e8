"""What stands in the loops of a kernel, by its PTX."""

from __future__ import annotations

from einpage.kernels.launch.machine_code import innermost_loops, most_in_a_loop

PTX = """
.visible .entry kernel(
$L__BB0_1:
  wgmma.mma_async before;
  @%p1 bra $L__BB0_5;
$L__BB0_2:
  load outer;
$L__BB0_3:
  wgmma.mma_async a;
  @!%p2 bra $L__BB0_4;
  wgmma.mma_async b;
$L__BB0_4:
  waitLoop:
  @!complete bra.uni waitLoop;
  @%p3 bra $L__BB0_3;
  @%p4 bra.uni $L__BB0_2;
$L__BB0_5:
  load after;
  load again;
  @%p5 bra $L__BB0_5;
  ret;
"""


def test_only_loops_that_hold_no_other_count() -> None:
    first, second = innermost_loops(PTX)
    assert [line.strip() for line in first][:2] == ["$L__BB0_3:", "wgmma.mma_async a;"]
    assert first[-1].strip() == "@%p3 bra $L__BB0_3;"
    assert second[0] == "$L__BB0_5:"


def test_the_loop_that_has_the_most_is_counted() -> None:
    assert most_in_a_loop(PTX, r"wgmma\.mma_async") == 2
    assert most_in_a_loop(PTX, r"\bload\b") == 2
    assert most_in_a_loop(PTX, r"nothing") == 0
    assert most_in_a_loop("ret;", r"ret") == 0
