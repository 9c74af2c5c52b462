"""A small editor: one operation under an id of its own, and the results of an inbox."""

import os
import random
import secrets
import time
import uuid

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from receiptd.v1 import inbox_service_pb2 as inbox
from receiptd.v1 import inbox_service_pb2_grpc, operation_service_pb2_grpc
from receiptd.v1 import operation_service_pb2 as operation
from receiptd.v1 import types_pb2 as types

OPTIONS = [
    # An answer has at most 8 MiB; gRPC's own limit is 4 MiB.
    ("grpc.max_receive_message_length", 8 << 20),
    # A window of 1 MiB at the least: a reader that falls behind with many small results is cut
    # off by the transport's own limits the sooner, the smaller its window is.
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # A connection that has gone silent is noticed within 30 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
# Without an ErrorInfo of receiptd these say nothing about the outcome.
DOUBT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
AGAIN = {"WAIT", "RESUBMIT_SAME_ID", "SLOW_DOWN"}
# A newer stream of the same consumer goes on; or the token is of another life of the store.
ENDS_STREAM = {"STREAM_SUPERSEDED", "STORE_EPOCH_CHANGED"}


def connect(address):
    """A channel; with a certificate on the server, grpc.secure_channel."""
    return grpc.insecure_channel(address, OPTIONS)


def credentials():
    """The metadata of every call; `receiptd dev` asks for none."""
    token = os.environ.get("RECEIPTD_TOKEN")
    return [("authorization", f"Bearer {token}")] if token else []


def mint():
    """A UUIDv7, which carries its mint time. Python 3.14 has uuid.uuid7()."""
    value = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def error_info(error):
    """The ErrorInfo of a failed call, if the service itself has answered."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == "receiptd":
            return info
    return None


def is_in_doubt(error):
    """Whether the same request may be answered when it is sent again."""
    info = error_info(error)
    return info.metadata["recovery"] in AGAIN if info else error.code() in DOUBT


def submit(channel, request, attempts=8):
    """The answer. Every attempt is the same request under the same id."""
    stub = operation_service_pb2_grpc.OperationServiceStub(channel)
    for attempt in range(attempts):
        try:
            return stub.SubmitOperation(request, timeout=10, metadata=credentials())
        except grpc.RpcError as error:
            if not is_in_doubt(error) or attempt + 1 == attempts:
                # Not a failure of the operation: keep the id, and look it up later.
                raise
        time.sleep(random.uniform(0, min(5, 0.1 * 2**attempt)))


def follow(channel, name, consumer, token=""):
    """Yields (token, result), and (token, None) when all that was there has been sent."""
    stub = inbox_service_pb2_grpc.InboxServiceStub(channel)
    pause = 0.1
    while True:
        request = inbox.StreamDeliveriesRequest(
            inbox=name, consumer_id=consumer, resume_token=token
        )
        try:
            for frame in stub.StreamDeliveries(request, metadata=credentials()):
                pause = 0.1
                kind = frame.WhichOneof("frame")
                # Before the token moves on, the results that it covers are the caller's.
                for result in frame.deliveries.results:
                    yield token, result
                token = getattr(getattr(frame, kind), "resume_token", token)
                if kind == "caught_up":
                    yield token, None
        except grpc.RpcError as error:
            info = error_info(error)
            if not is_in_doubt(error) or info and info.reason in ENDS_STREAM:
                raise
        # Draining, age, or a lost connection: open again with the last token.
        time.sleep(random.uniform(0, pause))
        pause = min(5, 2 * pause)


def ack(channel, results):
    """Says that the results were used; durable when it returns, harmless to repeat."""
    targets = [
        inbox.AckTarget(inbox=result.delivery.inbox, sequence=result.delivery.sequence)
        for result in results
    ]
    stub = inbox_service_pb2_grpc.InboxServiceStub(channel)
    request = inbox.AckDeliveriesRequest(deliveries=targets)
    return stub.AckDeliveries(request, timeout=10, metadata=credentials()).results


def main():
    channel = connect(os.environ.get("RECEIPTD_ADDRESS", "127.0.0.1:7070"))
    request = operation.SubmitOperationRequest(
        # Once per intended action. Save it beside the action before the first attempt.
        operation_id=mint(),
        intent=types.Intent(
            action="document.append", target="notes/today", arguments=b'{"line": "hello"}'
        ),
        inbox="editor",
    )
    answer = submit(channel, request)
    state = types.Operation.State.Name(answer.operation.state)
    print(types.Origin.Name(answer.origin), state)

    shown = set()
    for token, result in follow(channel, "editor", "my-laptop"):
        if result is None:
            break  # An editor goes on reading.
        key = (result.delivery.inbox, result.delivery.sequence)
        if key not in shown:
            shown.add(key)
            state = types.Operation.State.Name(result.operation.state)
            print("again" if result.redelivered else "new", key[1], state)
        for acked in ack(channel, [result]):
            print(inbox.AckOutcome.Name(acked.outcome))


if __name__ == "__main__":
    main()
