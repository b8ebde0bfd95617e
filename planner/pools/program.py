"""The open split over pools as an integer program for CP-SAT: what thresholds cannot prove, this does.

The objective is the schedule's step time: the slowest stage, the bubble of all stages' own times, and the longest of what
stages do once a step beside that slowest stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.pools.split_model import PooledSplit
from planner.splits.cp_sat import Program


class PooledProgram(Program):
    """The open split of a strategy on pools."""

    model: PooledSplit

    def _price(self) -> None:
        model = self.model
        m = int(model.row.num_micro_batches[0])
        self.share = round(1.0 / model.share)
        slowest, is_slowest, times = self._slowest()
        together = sum(self._sum(stage, time) for stage, time in enumerate(times))
        once = self._once(is_slowest, times)
        self.objective = (self.share * m - 1) * slowest + together + self.share * once
        self.sat.minimize(self.objective)

    def _once(self, is_slowest: list[Any], times: list[Any]) -> Any:
        """Once-a-step time steps: what every stage does beside each stage that may be the slowest, the longest counts."""
        model = self.model
        classes: dict[tuple[int, ...], Any] = {}
        least_slowest = max(int(time.min()) for time in times)
        beside: list[tuple[Any, list[Any], int]] = []
        for stage, (choices, time) in enumerate(zip(model.choices, times, strict=True)):
            for index in np.flatnonzero(time >= least_slowest).tolist():
                key = (model.pools[stage], int(time[index]), *choices.contents_CJ[index].tolist())
                if key not in classes:
                    classes[key] = self.sat.new_bool_var(f"class{len(classes)}")
                    ends = model.stage_ends_s(
                        model.pools[stage], choices.contents_CJ[index], float(choices.time_s[index])
                    )
                    fixed = int(self._steps(model.fixed_s[choices.layers[index]]))
                    beside.append((classes[key], [self._steps(each) for each in ends], fixed))
                # the slowest stage with this choice is of this class
                self.sat.add_bool_or(is_slowest[stage].negated(), self.pick[stage][index].negated(), classes[key])
        self.sat.add_exactly_one(classes.values())
        most = max(fixed + max(int(each.max()) for each in ends) for _, ends, fixed in beside)
        once = self.sat.new_int_var(0, most, "once")
        for flag, ends, fixed in beside:
            for stage, steps in enumerate(ends):
                self.sat.add(once >= fixed + self._sum(stage, steps)).only_enforce_if(flag)
        return once
