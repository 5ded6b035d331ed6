"""
Alarms for unusual readings
===========================

Two sensors of a machine work normally; then one of them flickers. The detector learns from the normal rows only.
"""

import numpy as np
import pandas as pd

import toa

rng = np.random.default_rng(0)

# %%
# The table: the load of a machine, and its temperature, which follows the load, every ten minutes. From row 120 of
# the new rows on, the temperature sensor flickers for two hours.

time = pd.date_range("2026-01-01", periods=800, freq="10min")
load = np.sin(2 * np.pi * np.arange(800) / 24) + 0.05 * rng.standard_normal(800)
temperature = 20 + 5 * load + 0.2 * rng.standard_normal(800)
temperature[720:732] += 6 * (-1.0) ** np.arange(12)
table = pd.DataFrame({"time": time, "load": load, "temperature": temperature})
normal, new = table.head(600), table.tail(200).reset_index(drop=True)

# %%
# `fit` takes normal rows. `contamination` is the share of normal rows that may be flagged: it sets the threshold.

detector = toa.AnomalyDetector(window=24, epochs=4, contamination=0.005).fit(normal)
found = detector.predict(new)
flagged = found.loc[found["anomaly"] == 1, "time"]
print(f"{len(flagged)} rows of {len(new)} flagged, from {flagged.min()} to {flagged.max()}")

# %%
# The same as a stream: `detect` scores each row when it arrives, with the rows before it as context.

detector.detect(new.head(100))
alarms = [bool(detector.detect(new.iloc[[row]])["anomaly"].iloc[0]) for row in range(100, 140)]
first_alarm = 100 + alarms.index(True)
print(f"first alarm at row {first_alarm}; the sensor flickers from row 120")

# %%
# In a terminal: `toa detect sensors.csv` writes scores, flags and a picture.
