# what: dataclasses, typing, generics, abstract classes and a cache
# want: pass
# kind: correct
# unsafe: stopped
from abc import ABC, abstractmethod
from dataclasses import dataclass
import functools
from typing import Generic, TypeVar

Value = TypeVar('Value')


class Sum(ABC, Generic[Value]):
  @abstractmethod
  def total(self) -> Value: ...


@dataclass(frozen=True)
class Pair(Sum[Value]):
  left: Value
  right: Value

  def total(self) -> Value:
    return self.left + self.right


@functools.lru_cache(maxsize=None)  # noqa: UP033
def add(a: Value, b: Value) -> Value:
  return Pair(a, b).total()
