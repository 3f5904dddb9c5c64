"""Small random kernels, as text and as NumPy: two readings of one program, with nothing in common but its operations.

A program works on four unsigned registers a thread. Its operations stand for what kernels do: index arithmetic,
branches by thread, loops, shuffles, votes, and exchanges through shared memory between barriers.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.emulator import RawModule

THREADS, REGISTERS = 64, 4


@dataclass(frozen=True)
class Operation:
    kind: str
    to: int
    a: int
    b: int
    number: int

    def text(self) -> str:
        to, a, b, n = f"r{self.to}", f"r{self.a}", f"r{self.b}", self.number
        odd = 2 * n + 1
        full = "0xffffffffu"
        return {
            "add": f"{to} = {a} + {b} * {n}u;",
            "xor": f"{to} = {a} ^ ({b} >> {n % 31 + 1});",
            "mod": f"{to} = {a} % {n + 2}u;",
            "gather": f"{to} = x[({a} + {n}u) % {THREADS}u];",
            "branch": f"if (t % {n + 2} < {n % 3 + 1}) {{ {to} = {a} - {b}; }} else {{ {to} += {n}u; }}",
            "loop": f"for (int i = 0; i < {n % 5 + 1}; i++) {to} = {to} * 3u + {a} + i;",
            "shuffle": f"{to} = __shfl_sync({full}, {a}, ({n} + (int)t) % 32);",
            "shuffle_xor": f"{to} = __shfl_xor_sync({full}, {a}, {1 << n % 5});",
            "shuffle_down": f"{to} = __shfl_down_sync({full}, {a}, {n % 9}, {8 << n % 3});",
            "shuffle_up": f"{to} = __shfl_up_sync({full}, {a}, {n % 9}, {8 << n % 3});",
            "ballot": f"{to} = __ballot_sync({full}, {a} % {n + 2}u == 0u);",
            "reduce": f"{to} = __reduce_add_sync({full}, {a} & 1023u);",
            "exchange": f"s[({odd}u * t + {n}u) % {THREADS}u] = {a}; __syncthreads(); "
            f"{to} = s[(t + {b} % {THREADS}u) % {THREADS}u]; __syncthreads();",
            "count": f"{to} = __syncthreads_count({a} % {n + 2}u == 1u);",
        }[self.kind]

    def apply(self, r: np.ndarray, x: np.ndarray) -> None:
        t = np.arange(THREADS, dtype=np.uint32)
        lane, first = t % 32, t - t % 32
        a, b, n = r[self.a].copy(), r[self.b].copy(), self.number
        u = np.uint32
        width = 8 << n % 3
        match self.kind:
            case "add":
                out = a + b * u(n)
            case "xor":
                out = a ^ (b >> u(n % 31 + 1))
            case "mod":
                out = a % u(n + 2)
            case "gather":
                out = x[(a + u(n)) % u(THREADS)]
            case "branch":
                out = np.where(t % u(n + 2) < n % 3 + 1, a - b, r[self.to] + u(n))
            case "loop":
                out = r[self.to].copy()
                for i in range(n % 5 + 1):
                    # the operand may be the register itself, which changes on the way
                    out = out * u(3) + (out if self.a == self.to else a) + u(i)
            case "shuffle":
                out = a[first + (n + t) % 32]
            case "shuffle_xor":
                out = a[first + (lane ^ u(1 << n % 5))]
            case "shuffle_down":
                inside = lane % width + n % 9 < width
                out = a[np.where(inside, t + n % 9, t)]
            case "shuffle_up":
                inside = lane % width >= n % 9
                out = a[np.where(inside, t - n % 9, t)]
            case "ballot":
                votes = (a % u(n + 2) == 0).reshape(2, 32)
                out = np.repeat((votes << np.arange(32, dtype=np.uint64)).sum(axis=1), 32)
            case "reduce":
                out = np.repeat((a & u(1023)).reshape(2, 32).sum(axis=1), 32)
            case "exchange":
                s = np.zeros(THREADS, np.uint32)
                s[(u(2 * n + 1) * t + u(n)) % u(THREADS)] = a
                out = s[(t + b % u(THREADS)) % u(THREADS)]
            case "count":
                out = np.full(THREADS, (a % u(n + 2) == 1).sum())
        r[self.to] = out.astype(np.uint32)


KINDS = (
    *("add", "xor", "mod", "gather", "branch", "loop", "shuffle", "shuffle_xor", "shuffle_down", "shuffle_up"),
    *("ballot", "reduce", "exchange", "count"),
)
registers = st.integers(0, REGISTERS - 1)
operations = st.builds(Operation, st.sampled_from(KINDS), registers, registers, registers, st.integers(0, 40))
programs = st.lists(operations, min_size=1, max_size=12)


def kernel_text(name: str, program: list[Operation]) -> str:
    body = "\n    ".join(op.text() for op in program)
    start = " ".join(f"unsigned r{i} = x[t] * {2 * i + 1}u + {i}u;" for i in range(REGISTERS))
    end = " ".join(f"y[{i} * {THREADS} + t] = r{i};" for i in range(REGISTERS))
    return f"""extern "C" __global__ void {name}(const unsigned* x, unsigned* y) {{
    __shared__ unsigned s[{THREADS}];
    unsigned t = threadIdx.x;
    {start}
    {body}
    {end}
    if (y == 0) s[t] = 0;
}}
"""


def model(program: list[Operation], x: np.ndarray) -> np.ndarray:
    u = np.uint32
    r = np.stack([x * u(2 * i + 1) + u(i) for i in range(REGISTERS)])
    for op in program:
        op.apply(r, x)
    return r


@settings(max_examples=8)
@given(st.lists(programs, min_size=25, max_size=25), st.integers(0, 2**32 - 1))
def test_random_kernels_agree_with_numpy(batch, seed):
    """Eight batches of 25 kernels; a batch is one compilation."""
    module = RawModule(code="".join(kernel_text(f"k{i}", p) for i, p in enumerate(batch)))
    x = np.random.default_rng(seed).integers(0, 2**32, THREADS, dtype=np.uint32)
    for i, program in enumerate(batch):
        y = np.zeros((REGISTERS, THREADS), np.uint32)
        module.get_function(f"k{i}")((1,), (THREADS,), (x, y))
        np.testing.assert_array_equal(y, model(program, x), err_msg=kernel_text(f"k{i}", program))
