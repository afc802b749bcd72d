"""`make bench`: every benchmark in turn. Figures to quote are ratios within one run (docs/benchmarks.md)."""

import subprocess
import sys

SCRIPTS = (
    "bench_throughput",
    "bench_queues",
    "bench_latency",
    "bench_memory",
    "bench_archive",
    "bench_spark_fold",
    "bench_spark_native",
    "bench_kafka_log",
    "bench_kafka",
)

for script in SCRIPTS:
    print(f"\n== {script}", flush=True)
    subprocess.run([sys.executable, "-m", f"tests.bench.{script}"], check=True)
