"""Save scikit-learn's breast cancer table as a dataset of Hugging Face, into build/saved of the present folder."""

from datasets import ClassLabel, Dataset
from sklearn.datasets import load_breast_cancer


def main() -> None:
    """Save the splits `train` and `test`, stratified."""
    found = load_breast_cancer()
    names = [str(name) for name in found.target_names]
    table = Dataset.from_dict({"features": found.data.tolist(), "label": found.target.tolist()})
    table = table.cast_column("label", ClassLabel(names=names))
    table.train_test_split(0.2, seed=0, stratify_by_column="label").save_to_disk("build/saved")


if __name__ == "__main__":
    main()
