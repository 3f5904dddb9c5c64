"""Figures. Each takes results and returns a matplotlib Axes; draw on one of yours with `ax=`, or get a new figure.

New figures are not registered with pyplot, so that nothing is left open: `charts.traffic_by_algorithm(...).figure`
shows in a notebook, and `.figure.savefig("traffic.png")` writes it. The figures of a replay are in `charts.serving`.
"""

from refsim.charts import serving
from refsim.charts.filmstrip import draw_softmax_frame, filmstrip, softmax_frames
from refsim.charts.lookup import block_lookup
from refsim.charts.pool import pool_map
from refsim.charts.pool_film import PoolFilm
from refsim.charts.roofline import roofline
from refsim.charts.softmax import softmax_walk
from refsim.charts.style import human_nbytes
from refsim.charts.traffic import traffic_by_algorithm, traffic_by_length

__all__ = [
    "PoolFilm",
    "block_lookup",
    "draw_softmax_frame",
    "filmstrip",
    "human_nbytes",
    "pool_map",
    "roofline",
    "serving",
    "softmax_frames",
    "softmax_walk",
    "traffic_by_algorithm",
    "traffic_by_length",
]
