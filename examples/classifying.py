"""Labels for whole series.

BasicMotions, which installing `toa` brings along: six channels of a smart watch, four motions.
"""

from aeon.datasets import load_basic_motions

import toa

X, y = load_basic_motions(split="train")
X_new, y_new = load_basic_motions(split="test")
print(f"{len(X)} cases of {X.shape[1]} channels and {X.shape[2]} steps: {', '.join(sorted(set(y)))}")

classifier = toa.Classifier(epochs=6).fit(X, y)
accuracy = classifier.score(X_new, y_new)
print(f"accuracy on {len(X_new)} new cases: {accuracy:.2f}")
label, chance = classifier.predict(X_new[:1])[0], classifier.predict_proba(X_new[:1]).max()
print(f"first new case: {label}, with probability {chance:.2f}")
