"""What is checked of the kernels without a GPU: that its compilers take them, what they take of it, and habits."""

from gpu.gates.lint import lint_folder, lint_text
from gpu.gates.nvrtc import GateRow, gate, jobs

__all__ = ["GateRow", "gate", "jobs", "lint_folder", "lint_text"]
