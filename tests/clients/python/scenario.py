"""Everything else that an editor may meet: each step prints one line of JSON."""

import json
import os
import queue
import time

import grpc
from receiptd.v1 import inbox_service_pb2 as inbox
from receiptd.v1 import inbox_service_pb2_grpc, operation_service_pb2_grpc
from receiptd.v1 import operation_service_pb2 as operation
from receiptd.v1 import session_service_pb2 as session
from receiptd.v1 import session_service_pb2_grpc
from receiptd.v1 import types_pb2 as types

import guide

CREDENTIALS = guide.credentials()
CHANNEL = guide.connect(os.environ["RECEIPTD_ADDRESS"])
OPERATIONS = operation_service_pb2_grpc.OperationServiceStub(CHANNEL)
INBOXES = inbox_service_pb2_grpc.InboxServiceStub(CHANNEL)


def emit(step, **fields):
    print(json.dumps({"step": step, **fields}), flush=True)


def state(value):
    return types.Operation.State.Name(value.state)


def request(target, line, name, **fields):
    intent = types.Intent(
        action="document.append", target=target, arguments=json.dumps({"line": line}).encode()
    )
    return operation.SubmitOperationRequest(
        operation_id=guide.mint(), intent=intent, inbox=name, **fields
    )


def look_up(identity):
    asked = operation.GetOperationRequest(operation_id=identity)
    return OPERATIONS.GetOperation(asked, timeout=10, metadata=CREDENTIALS)


def failure(call):
    """How a call failed that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        info = guide.error_info(error)
        details = {"reason": info.reason, **info.metadata} if info else {"reason": ""}
        return {"code": error.code().name, **details}
    return {"code": "OK"}


def submit_over(address, asked, timeout):
    with guide.connect(address) as channel:
        stub = operation_service_pb2_grpc.OperationServiceStub(channel)
        return failure(lambda: stub.SubmitOperation(asked, timeout=timeout, metadata=CREDENTIALS))


def lost_answers():
    asked = request("notes/cut", "once", "editor")
    emit("cut", id=asked.operation_id, **submit_over(os.environ["RECEIPTD_CUT"], asked, 10))
    again = guide.submit(CHANNEL, asked)
    found = look_up(asked.operation_id)
    emit(
        "again",
        origin=types.Origin.Name(again.origin),
        state=state(again.operation),
        receipt=again.operation.receipt.SerializeToString().hex(),
    )
    emit(
        "looked_up",
        standing=types.Standing.Name(found.standing),
        receipt=found.operation.receipt.SerializeToString().hex(),
    )
    asked.intent.arguments = b'{"line": "other"}'
    emit("mismatch", **failure(lambda: guide.submit(CHANNEL, asked)))

    silent = request("notes/silent", "once", "editor")
    failed = submit_over(os.environ["RECEIPTD_SILENT"], silent, 1)
    found = look_up(silent.operation_id)
    emit("silent", standing=types.Standing.Name(found.standing), **failed)


def backlog(token):
    """Reads on a connection of its own what waits in the inbox, and drops the stream."""
    with guide.connect(os.environ["RECEIPTD_ADDRESS"]) as channel:
        stub = inbox_service_pb2_grpc.InboxServiceStub(channel)
        opening = inbox.StreamDeliveriesRequest(
            inbox="editor", consumer_id="laptop", resume_token=token
        )
        stream = stub.StreamDeliveries(opening, timeout=20, metadata=CREDENTIALS)
        kinds, results = [], []
        for frame in stream:
            kinds.append(frame.WhichOneof("frame"))
            results.extend(frame.deliveries.results)
            if kinds[-1] == "caught_up":
                break
        token = frame.caught_up.resume_token
        stream.cancel()
    shown = [
        {
            "sequence": result.delivery.sequence,
            "target": result.operation.receipt.target,
            "attempt": result.delivery.attempt,
            "redelivered": result.redelivered,
        }
        for result in sorted(results, key=lambda result: result.delivery.sequence)
    ]
    return {"first": kinds[0], "results": shown}, results, token


def deliveries():
    shown, _, token = backlog("")
    emit("stream", **shown)
    shown, results, token = backlog(token)
    emit("resumed", **shown)
    for step in ["acked", "acked_again"]:
        outcomes = guide.ack(CHANNEL, results)
        emit(step, outcomes=[inbox.AckOutcome.Name(one.outcome) for one in outcomes])
    shown, _, _ = backlog(token)
    emit("after_acks", **shown)


def endings():
    holder = request("notes/held", "holder", "locks")
    holder.intent.lock_mode = types.LOCK_MODE_UNTIL_ACKED
    held = guide.submit(CHANNEL, holder)
    waiter = request("notes/held", "waiter", "locks")
    waiter.wait.seconds = 30
    answer = OPERATIONS.SubmitOperation(waiter, timeout=1, metadata=CREDENTIALS)
    emit(
        "deadline",
        origin=types.Origin.Name(answer.origin),
        state=state(answer.operation),
        waits_for_holder=answer.operation.waiting_for.operation_id == holder.operation_id,
        next=types.RecoveryAction.Name(answer.recovery.action),
    )

    watching = operation.WatchOperationRequest(operation_id=waiter.operation_id)
    stream = OPERATIONS.WatchOperation(watching, metadata=CREDENTIALS)
    first = next(stream)
    stream.cancel()
    ended = failure(lambda: next(stream))
    found = look_up(waiter.operation_id)
    emit(
        "stream_cancelled",
        snapshot=first.snapshot,
        code=ended["code"],
        state=state(found.operation),
    )

    closed = request("notes/held", "closed", "locks")
    closed.wait.seconds = 30
    channel = guide.connect(os.environ["RECEIPTD_ADDRESS"])
    stub = operation_service_pb2_grpc.OperationServiceStub(channel)
    call = stub.SubmitOperation.future(closed, timeout=30, metadata=CREDENTIALS)
    end = time.monotonic() + 10
    while look_up(closed.operation_id).standing != types.STANDING_RECORDED:
        assert time.monotonic() < end, "the submit is recorded"
    channel.close()
    ended = failure(call.result)
    found = look_up(closed.operation_id)
    emit("channel_closed", code=ended["code"], state=state(found.operation))

    guide.ack(CHANNEL, [as_result(held)])
    watching = operation.WatchOperationRequest(operation_id=closed.operation_id)
    looks = list(OPERATIONS.WatchOperation(watching, timeout=10, metadata=CREDENTIALS))
    again = guide.submit(CHANNEL, closed)
    emit(
        "released", watched=state(looks[-1].operation), origin=types.Origin.Name(again.origin)
    )


def as_result(answer):
    return inbox.DeliveredResult(delivery=answer.deliveries[0], operation=answer.operation)


def sessions():
    """Submit, result and ack on one stream in both directions."""
    stub = session_service_pb2_grpc.SessionServiceStub(CHANNEL)
    frames = Frames()
    stream = stub.Connect(iter(frames), timeout=20, metadata=CREDENTIALS)
    frames.send(open=session.SessionOpen(inbox="session", consumer_id="laptop"))
    opened = next(stream)
    item = session.SessionSubmitItem(tag=7, request=request("notes/session", "once", "session"))
    frames.send(submit=session.SessionSubmit(items=[item]))
    submitted = acked = None
    for frame in stream:
        for result in frame.submit_result.results:
            submitted = result
        for result in frame.deliveries.results:
            target = inbox.AckTarget(inbox="session", sequence=result.delivery.sequence)
            ack = inbox.AckDeliveriesRequest(deliveries=[target])
            frames.send(ack=session.SessionAck(tag=8, request=ack))
        for result in frame.ack_result.results:
            acked = result
        if submitted and acked:
            frames.end()
    emit(
        "session",
        first=opened.WhichOneof("frame"),
        submit_tag=submitted.tag,
        origin=types.Origin.Name(submitted.result.response.origin),
        ack_tag=acked.tag,
        outcome=inbox.AckOutcome.Name(acked.response.results[0].outcome),
        code=stream.code().name,
    )


class Frames:
    """The frames to send, for gRPC's own thread that asks for them."""

    def __init__(self):
        self.waiting = queue.SimpleQueue()

    def send(self, **frame):
        self.waiting.put(session.ConnectRequest(**frame))

    def end(self):
        self.waiting.put(None)

    def __iter__(self):
        return iter(self.waiting.get, None)


lost_answers()
deliveries()
endings()
sessions()
CHANNEL.close()
