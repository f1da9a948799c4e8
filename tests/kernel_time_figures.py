"""KernelTimes for tests: some that change nothing, and any at all."""

from __future__ import annotations

from hypothesis import strategies as st

from einpage.memplan.machine.kernel_times import AtDistance, AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.places import host_links

seconds = st.floats(0.0, 1.0)
rates = st.floats(1e3, 1e15)
factors = st.floats(1.0, 9.0)


def nothing_usual() -> KernelTimes:
    """Faster than any rates, and nothing in another's way: tasks take what the rates say."""
    products = ProductTimes(0.0, (AtRows(1, 1e30),))
    return KernelTimes(0.0, 0.0, products, products, products, MapTimes(0.0, 0.0, 0.0, 0.0, 0.0), CopyTimes(host_links(1e30, 1e30), 0.0))


@st.composite
def tables(draw: st.DrawFn) -> tuple[AtRows, ...]:
    """Never makes: an empty table, one of more than four entries."""
    rows = sorted(draw(st.sets(st.integers(1, 5000), min_size=1, max_size=4)))
    return tuple(AtRows(r, draw(rates), *(draw(factors) for _ in range(3))) for r in rows)


@st.composite
def distances(draw: st.DrawFn) -> tuple[AtDistance, ...]:
    """None to three entries, bytes ascending."""
    return tuple(AtDistance(nbytes, draw(factors)) for nbytes in sorted(draw(st.sets(st.integers(1, 1 << 30), max_size=3))))


@st.composite
def kernel_times(draw: st.DrawFn) -> KernelTimes:
    """Any that a profile may hold. Never makes: links of two latencies, which a profile cannot say."""
    return KernelTimes(
        start_s=draw(seconds),
        wakeup_s=draw(seconds),
        products=ProductTimes(draw(seconds), draw(tables()), epilogue_s=draw(seconds), function_s=draw(seconds), unpack_s=draw(seconds)),
        attention=ProductTimes(draw(seconds), draw(tables()), draw(seconds)),
        few_queries=ProductTimes(draw(seconds), draw(tables()), draw(seconds)),
        maps=MapTimes(*(draw(seconds) for _ in range(5)), draw(factors), draw(factors)),
        copies=CopyTimes(host_links(draw(rates), draw(rates), draw(seconds)), draw(seconds), draw(factors), draw(distances())),
    )
