"""The error of datasets that cannot be loaded."""

__all__ = ['DatasetError', 'check_available']


class DatasetError(Exception):
    """Data is missing or damaged. The message is one line: setting, value, problem, remedy."""

    @classmethod
    def about(cls, setting: str, value: object, problem: str, remedy: str) -> 'DatasetError':
        """The error for `configs.dataset.<setting>`."""
        line = f'configs.dataset.{setting} = {value!r}: {problem}; {remedy}'
        return cls(' '.join(line.split()))


def check_available(setting: str, number: int | None, available: int, what: str) -> None:
    """Refuse a number of samples to use that there are not.

    Args:
        setting: Of the data set.
        number: Its value; None for all.
        available: How many there are.
        what: Their name, in the plural.

    Raises:
        DatasetError: If it is below 1, or more than there are.
    """
    if number is not None and not 1 <= number <= available:
        problem = f'there are {available} {what}'
        raise DatasetError.about(setting, number, problem, 'choose from 1 to that, or None for all')
