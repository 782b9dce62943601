"""The error of datasets that cannot be loaded."""

__all__ = ['DatasetError']


class DatasetError(Exception):
    """Data is missing or damaged. The message is one line: setting, value, problem, remedy."""

    @classmethod
    def about(cls, setting: str, value: object, problem: str, remedy: str) -> 'DatasetError':
        """The error for `configs.dataset.<setting>`."""
        line = f'configs.dataset.{setting} = {value!r}: {problem}; {remedy}'
        return cls(' '.join(line.split()))
