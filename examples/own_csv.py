"""Forecasts from a table of your own.

A CSV with a column of times and columns of numbers is enough: `toa.Forecaster` finds the times and their frequency,
chooses sizes by the amount of data, and answers in the units of the table.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import toa

# For a table to begin with, here are 40 days of hourly readings of a shop: visitors, by the hour and the day of the
# week, and the power that it draws.

hours = pd.date_range("2026-03-01", periods=40 * 24, freq="h")
rng = np.random.default_rng(0)
open_now = (hours.hour >= 8) & (hours.hour < 20) & (hours.dayofweek < 6)
visitors = open_now * (40 + 15 * np.sin(2 * np.pi * (hours.hour - 8) / 12)) + 2 * rng.standard_normal(len(hours))
power = 5 + 0.2 * visitors + 0.5 * rng.standard_normal(len(hours))
pd.DataFrame({"time": hours, "visitors": visitors, "power": power}).to_csv("shop.csv", index=False)

# From here on it is your table. The last week is kept aside, to see how good the forecasts are.

table = pd.read_csv("shop.csv", parse_dates=["time"])
seen, kept = table.iloc[: -7 * 24], table.iloc[-7 * 24 :]
model = toa.Forecaster(horizon=24, lookback=7 * 24, interval=0.8, epochs=5).fit(seen)
print(f"one row every {model.freq_}; a forecast looks {model.lookback_} steps back")

# `predict` goes on from where the table ended. The frame has the columns of the table, and the ends of the interval
# that was asked for: it is calibrated on rows that training did not see, so that 80 % of values fall into it.

forecast = model.predict()
print(forecast.head(3).to_string(index=False, float_format="%.1f"))

# How far off is it? `backtest` forecasts from every hour of the week that was kept aside. Errors are on standardised
# values, as benchmarks have them, and for each column in its own units, beside what repeating the day before would
# give.

result = model.backtest(table, test_size=7 * 24)
print({name: round(value, 3) for name, value in result.metrics.items()})
for column, errors in result.by_column.items():
    naive = float((table[column] - table[column].shift(24)).tail(7 * 24).abs().mean())
    print(f"{column}: off by {errors['mae']:.2f} on average; the day before, by {naive:.2f}")

# A picture of the first day of that week.

day = kept.head(24)
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.plot(seen["time"].tail(72), seen["visitors"].tail(72), color="0.4", label="seen")
axis.plot(day["time"], day["visitors"], color="black", label="what came")
axis.plot(forecast["time"], forecast["visitors"], color="tab:red", label="forecast")
axis.fill_between(
    forecast["time"], forecast["visitors_lower"], forecast["visitors_upper"], color="tab:red", alpha=0.2, label="80 %"
)
axis.legend(ncols=4, loc="upper left")
axis.set_ylabel("visitors an hour")
figure.savefig("forecast.png", dpi=100)

# Saved, the model is a file of weights and plain settings; it loads without a GPU, and nothing in it is ever executed.
# Other rows of the same columns are forecast without training anew.

model.save("shop.toa")
again = toa.Forecaster.load("shop.toa")
print(again.predict(table).head(1).to_string(index=False, float_format="%.1f"))
print(f"{Path('shop.toa').stat().st_size / 1024:.0f} kB")

# The same in a terminal, with a picture: `toa forecast shop.csv --horizon 24 --test 0.2 --save shop.toa`.
# Several series in one table have a column of ids, named by `id=`; gaps and missing values are refused until `missing=`
# says what to do about them; `quantiles=`, `calendar=` and `covariates=` are described in the API.
