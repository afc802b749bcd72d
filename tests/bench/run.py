"""`make bench`: every benchmark in turn. Figures to quote are ratios within one run (docs/benchmarks.md)."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

SCRIPTS = (
    "bench_throughput.py", "bench_queues.py", "bench_latency.py", "bench_memory.py", "bench_spark_fold.py",
    "bench_spark_native.py", "bench_kafka_log.py", "bench_kafka.py",
)  # fmt: skip

for script in SCRIPTS:
    print(f"\n== {script}", flush=True)
    subprocess.run([sys.executable, HERE / script], check=True)
