"""A request's texts on their way to the model and back."""

import asyncio
from collections import deque
from collections.abc import Sequence

from slm_runtime.records import Prediction, Ticket
from slm_runtime.task import Task


class Call:
    """The tickets of one request, in rows from 0. Under the backlog's lock they are taken one by one or dropped;
    on the event loop their predictions are gathered until `answer`, a list in the order of the rows, is complete.
    """

    def __init__(self, task: Task, tickets: Sequence[Ticket], arrived: float) -> None:
        self.task = task
        self.arrived = arrived
        self.answer: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()
        self._untaken = deque(tickets)
        self._predictions: dict[int, Prediction] = {}
        self._num_tickets = len(tickets)

    @property
    def num_untaken(self) -> int:
        return len(self._untaken)

    @property
    def next_text(self) -> str:
        return self._untaken[0].text or ""

    def take(self) -> Ticket:
        """The next ticket, which the caller must bring back as a prediction."""
        return self._untaken.popleft()

    def drop(self) -> int:
        """Forget the tickets that were not taken; how many there were."""
        dropped = len(self._untaken)
        self._untaken.clear()
        return dropped

    def note(self, prediction: Prediction) -> None:
        """Enter one prediction, on the event loop."""
        self._predictions[prediction.row] = prediction
        if len(self._predictions) == self._num_tickets and not self.answer.done():
            self.answer.set_result([self._predictions[row] for row in range(self._num_tickets)])

    def fail(self, error: Exception) -> None:
        """Answer with an exception, on the event loop."""
        if not self.answer.done():
            self.answer.set_exception(error)
