"""The tour: a real model writes text through a paged KV cache, told in chapters for the terminal and a report."""

from refsim.tour.guide import chapters
from refsim.tour.page import Chapter, Picture, Prose, Quote, Table
from refsim.tour.report import write_report
from refsim.tour.setting import Setting, prepare
from refsim.tour.terminal import show

__all__ = ["Chapter", "Picture", "Prose", "Quote", "Setting", "Table", "chapters", "prepare", "show", "write_report"]
