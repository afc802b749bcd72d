"""The process and its machine: connections admitted, memory, the loop's time, disk limits."""
