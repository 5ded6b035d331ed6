"""
Alarms for unusual readings
===========================

Sensors of a machine work normally; then one of them flickers, and another one shifts. The detector learns from the
normal rows only. It reports events with the channels that cause them, beside baselines.
"""

import numpy as np
import pandas as pd

import toa
from toa.training.detection import vus_metrics

rng = np.random.default_rng(0)

# %%
# The table: the load of a machine, its temperature, which follows the load, and its pressure, every ten minutes. In
# the new rows the temperature sensor flickers for two hours from row 60 on, and the pressure is too high for five hours
# from row 150 on.

time = pd.date_range("2026-01-01", periods=800, freq="10min")
load = np.sin(2 * np.pi * np.arange(800) / 24) + 0.05 * rng.standard_normal(800)
temperature = 20 + 5 * load + 0.2 * rng.standard_normal(800)
temperature[660:672] += 6 * (-1.0) ** np.arange(12)
pressure = 3 + 0.1 * rng.standard_normal(800)
pressure[750:780] += 1.0
table = pd.DataFrame({"time": time, "load": load, "temperature": temperature, "pressure": pressure})
normal = table.head(600)
new = table.tail(200).reset_index(drop=True)

# %%
# `fit` takes normal rows. `contamination` is the share of normal rows that may be flagged: it sets the threshold. Other
# rules are `threshold="extreme value"` and `threshold="budget"`, a number of alarms per day.

detector = toa.AnomalyDetector(window=24, epochs=4, contamination=0.005, cool_down=6).fit(normal)
found = detector.predict(new)
print(f"{int(found['anomaly'].sum())} rows of {len(new)} flagged")

# %%
# Alarms are merged into events, the most severe first. "why" names the channels with their shares in the score.

events = detector.events(new)
print(events[["start", "end", "severity", "why"]].to_string(index=False))

# %%
# The score is the mean of several methods. Anomalies that are injected into held-out normal rows show, without any
# label, how well each of them works here: the average precision of each method, and of the combination.

for name, precision in sorted(detector.choice_.precision.items(), key=lambda pair: -pair[1]):
    print(f"{name:18} {precision:.2f}" + (" (in the mean)" if name in detector.weights_ else ""))

# %%
# Each method is a detector of its own: `model="toa"` is the network alone, `model="pca"` a baseline. Here the rows that
# are really unusual are known, so that the methods can be compared by VUS-PR, which needs no threshold.

labels = np.zeros(len(new), dtype=bool)
labels[60:72] = labels[150:180] = True
scores = detector.member_scores(new).drop(columns="time").assign(combination=found["score"])
for name, score in scores.items():
    print(f"{name:18} {vus_metrics(labels, score.to_numpy(), max_buffer=24)['vus_pr']:.2f}")

# %%
# The same as a stream: `detect` scores each row when it arrives, with the rows before it as context. A row may be a
# frame, or a dict of its values.

detector.detect(new.head(50))
rows = new.iloc[50:80].to_dict("records")
alarms = [bool(detector.detect(row)["anomaly"].iloc[0]) for row in rows]
print(f"first alarm at row {50 + alarms.index(True)}; the sensor flickers from row 60")

# %%
# In a terminal: `toa detect new.csv --train normal.csv` writes scores, events and a picture with dates.
