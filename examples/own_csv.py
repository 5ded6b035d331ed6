"""
Forecasts from your own table
=============================

A CSV with a column of times and columns of numbers is enough. `toa.Forecaster` finds the times and their frequency,
chooses the size of the model by the amount of data, and forecasts in the units of the table.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import toa

# %%
# This example makes its table: 40 days of hourly readings of a shop, the number of visitors and the power it draws.

hours = pd.date_range("2026-03-01", periods=40 * 24, freq="h")
rng = np.random.default_rng(0)
open_now = (hours.hour >= 8) & (hours.hour < 20) & (hours.day_of_week < 6)
visitors = open_now * (40 + 15 * np.sin(2 * np.pi * (hours.hour - 8) / 12)) + 2 * rng.standard_normal(len(hours))
power = 5 + 0.2 * visitors + 0.5 * rng.standard_normal(len(hours))
pd.DataFrame({"time": hours, "visitors": visitors, "power": power}).to_csv("shop.csv", index=False)

# %%
# From here on, use your own table. The last week is kept for testing.

table = pd.read_csv("shop.csv", parse_dates=["time"])
seen = table.iloc[: -7 * 24]
kept = table.iloc[-7 * 24 :]
model = toa.Forecaster(horizon=24, lookback=7 * 24, interval=0.8, epochs=5).fit(seen)
print(f"one row every {model.freq_}; a season has {model.season_} steps")
print({name: round(weight, 2) for name, weight in model.weights_.items()})

# %%
# `predict` continues after the last row. The result has the columns of the table and the bounds of the interval,
# which is calibrated on rows that were not used for training, so that about 80 % of the values fall into it.

forecast = model.predict()
print(forecast.head(3).to_string(index=False, float_format="%.1f"))

# %%
# How accurate is it? `backtest` forecasts from every hour of the last week. `metrics` are on standardised values, as in
# benchmarks; `by_column` is in the units of each column. `table` compares with the baselines, `verdicts` in words.
# The model has not seen that week; `refit=24` would fit it again before each day of it.

result = model.backtest(table, test_size=7 * 24)
print({name: round(value, 3) for name, value in result.metrics.items()})
for column, errors in result.by_column.items():
    print(f"{column}: MAE {errors['mae']:.2f}")
print(result.table()[["mae", "mase", "smape"]].round(3))
print("\n".join(result.verdicts()))

# %%
# A picture of the first day of that week.

day = kept.head(24)
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.plot(seen["time"].tail(72), seen["visitors"].tail(72), color="0.4", label="seen")
axis.plot(day["time"], day["visitors"], color="black", label="observed")
axis.plot(forecast["time"], forecast["visitors"], color="tab:red", label="forecast")
axis.fill_between(
    forecast["time"], forecast["visitors_lower"], forecast["visitors_upper"], color="tab:red", alpha=0.2, label="80 %"
)
axis.legend(ncols=4, loc="upper left")
axis.set_ylabel("visitors per hour")
figure.savefig("forecast.png", dpi=100)

# %%
# A saved model is one file of weights and settings. It loads without a GPU, and loading never executes code from it.
# `predict` takes other rows with the same columns, without training again.

model.save("shop.toa")
again = toa.Forecaster.load("shop.toa")
print(again.predict(table).head(1).to_string(index=False, float_format="%.1f"))
print(f"{Path('shop.toa').stat().st_size / 1024:.0f} kB")

# %%
# The same in a terminal, with a picture: `toa forecast shop.csv --horizon 24 --test 0.2 --save shop.toa`. A table of
# several series needs a column of ids, `id=`. Gaps and missing values raise an error unless `missing=` selects how to
# fill them. The API describes `quantiles=`, `calendar=` and `covariates=`.
