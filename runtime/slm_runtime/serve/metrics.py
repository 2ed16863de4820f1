"""What /metrics shows. Label values come from fixed lists, so that no client can add any."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OUTCOMES = ("labelled", "below_threshold", "failed", "dropped")
BATCH_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = self._counter("requests", "Requests by route and status.", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "From first byte to answer.", SECONDS, "route")
        self.texts = self._counter("texts", "Texts by what became of them.", "outcome")
        for outcome in OUTCOMES:
            self.texts.labels(outcome)
        self.queue_texts = Gauge("slm_run_queue_texts", "Texts that wait.", registry=self.registry)
        self.queue_seconds = self._histogram("queue_seconds", "From arrival to the batch.", SECONDS)
        self.batch_texts = self._histogram("batch_texts", "Texts scored together.", BATCH_TEXTS)
        self.batch_seconds = self._histogram("batch_seconds", "Time in the model and around it.", SECONDS)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts, cached and shared ones included.")
        self.processed_tokens = self._counter("processed_tokens", "Tokens that the model processed.")
        self.rechecked = self._counter("rechecked", "Texts scored again alone because two labels were close.")
        self.ready = Gauge("slm_run_ready", "1 while requests are taken.", registry=self.registry)

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"slm_run_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"slm_run_{name}", help_text, labels, registry=self.registry, buckets=buckets)
