"""A small real engine is started as the product starts one, with variables of its own."""

from benchmarks.small_engine import VARIABLES, rendered
from domain.engine import EngineConfig


def test_it_gets_the_products_own_command_line_and_its_variables():
    bound = EngineConfig.of({"max_num_seqs": 4, "VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    arguments, variables = rendered(bound)
    assert arguments == ("--max-num-seqs", "4")
    assert variables == {**VARIABLES, "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
