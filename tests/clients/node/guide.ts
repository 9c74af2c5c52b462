// A small editor: one operation under an id of its own, and the results of an inbox.

import { setTimeout as pause } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";
import { v7 } from "uuid";
import type { AckResult__Output } from "./generated/receiptd/v1/AckResult";
import type { AckDeliveriesResponse__Output } from "./generated/receiptd/v1/AckDeliveriesResponse";
import type { DeliveredResult__Output } from "./generated/receiptd/v1/DeliveredResult";
import type { StreamDeliveriesResponse__Output } from "./generated/receiptd/v1/StreamDeliveriesResponse";
import type { SubmitOperationRequest } from "./generated/receiptd/v1/SubmitOperationRequest";
import type { SubmitOperationResponse__Output } from "./generated/receiptd/v1/SubmitOperationResponse";
import type { ErrorInfo__Output } from "./generated/google/rpc/ErrorInfo";
import type { ProtoGrpcType as Receiptd } from "./generated/session_service";
import type { ProtoGrpcType as Errors } from "./generated/status";

const definition = loader.loadSync(["receiptd/v1/session_service.proto", "status.proto"], {
  includeDirs: ["proto", "."],
  // The same as for the types: 64-bit numbers are strings.
  longs: String,
  enums: String,
  bytes: Buffer,
  oneofs: true,
});
export const proto = grpc.loadPackageDefinition(definition) as unknown as Receiptd & Errors;
export const service = proto.receiptd.v1;

const OPTIONS = {
  // An answer has at most 8 MiB; gRPC's own limit is 4 MiB.
  "grpc.max_receive_message_length": 8 << 20,
  // A window of 1 MiB: a reader that falls behind with many small results is cut off by the
  // transport's own limits the sooner, the smaller its window is.
  "grpc-node.flow_control_window": 1 << 20,
  // A connection that has gone silent is noticed within 30 s.
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // Whoever connects again gets a connection of its own.
  "grpc.use_local_subchannel_pool": 1,
};
// Without an ErrorInfo of receiptd these say nothing about the outcome.
const DOUBT = [
  grpc.status.UNAVAILABLE,
  grpc.status.DEADLINE_EXCEEDED,
  grpc.status.CANCELLED,
  grpc.status.INTERNAL,
  grpc.status.UNKNOWN,
  grpc.status.RESOURCE_EXHAUSTED,
];
const AGAIN = ["WAIT", "RESUBMIT_SAME_ID", "SLOW_DOWN"];
// A newer stream of the same consumer goes on; or the token is of another life of the store.
const ENDS_STREAM = ["STREAM_SUPERSEDED", "STORE_EPOCH_CHANGED"];

/** One connection. With a certificate on the server, grpc.credentials.createSsl(). */
export function connect(address: string) {
  const channel = new grpc.Channel(address, grpc.credentials.createInsecure(), OPTIONS);
  const over = { ...OPTIONS, channelOverride: channel };
  const none = grpc.credentials.createInsecure();
  return {
    channel,
    operations: new service.OperationService(address, none, over),
    inboxes: new service.InboxService(address, none, over),
    sessions: new service.SessionService(address, none, over),
  };
}
export type Connection = ReturnType<typeof connect>;

/** The metadata of every call; `receiptd dev` asks for none. */
export function credentials(): grpc.Metadata {
  const metadata = new grpc.Metadata();
  const token = process.env.RECEIPTD_TOKEN;
  if (token) metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

/** The end of a call, so many milliseconds from now. */
export function within(milliseconds: number): grpc.CallOptions {
  return { deadline: Date.now() + milliseconds };
}

/** A unary call as a promise. */
export function unary<A>(send: (done: grpc.requestCallback<A>) => unknown): Promise<A> {
  return new Promise((resolve, reject) => {
    send((error, answer) => (error ? reject(error) : resolve(answer as A)));
  });
}

/** The ErrorInfo of a failed call, if the service itself has answered. */
export function errorInfo(error: unknown): ErrorInfo__Output | undefined {
  const [bytes] = (error as grpc.ServiceError).metadata?.get("grpc-status-details-bin") ?? [];
  if (!(bytes instanceof Buffer)) return undefined;
  for (const detail of proto.google.rpc.Status.deserialize(bytes).details ?? []) {
    const { type_url, value } = detail as { type_url: string; value: Buffer };
    if (!type_url.endsWith("/google.rpc.ErrorInfo")) continue;
    const info = proto.google.rpc.ErrorInfo.deserialize(value);
    if (info.domain === "receiptd") return info;
  }
  return undefined;
}

/** Whether the same request may be answered when it is sent again. */
function isInDoubt(error: unknown): boolean {
  const info = errorInfo(error);
  if (info) return AGAIN.includes(info.metadata?.recovery ?? "");
  return DOUBT.includes((error as grpc.ServiceError).code);
}

/** The answer. Every attempt is the same request under the same id. */
export async function submit(to: Connection, request: SubmitOperationRequest, attempts = 8) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await unary<SubmitOperationResponse__Output>((done) =>
        to.operations.submitOperation(request, credentials(), within(10_000), done),
      );
    } catch (error) {
      // Not a failure of the operation: keep the id, and look it up later.
      if (!isInDoubt(error) || attempt + 1 === attempts) throw error;
    }
    await pause(Math.random() * Math.min(5_000, 100 * 2 ** attempt));
  }
}

/** Yields each result with the last token, and no result when all that was there has been sent. */
export async function* follow(to: Connection, inbox: string, consumerId: string, token = "") {
  for (let limit = 100; ; limit = Math.min(5_000, 2 * limit)) {
    const opening = { inbox, consumerId, resumeToken: token };
    const stream = to.inboxes.streamDeliveries(opening, credentials());
    // Leaving the loop below is an end as well, and no error.
    stream.on("error", () => {});
    try {
      for await (const frame of stream as AsyncIterable<StreamDeliveriesResponse__Output>) {
        limit = 50;
        // Before the token moves on, the results that it covers are the caller's.
        for (const result of frame.deliveries?.results ?? []) yield { token, result };
        const body = frame[frame.frame ?? "opened"];
        if (body && "resumeToken" in body) token = body.resumeToken ?? token;
        if (frame.caughtUp) yield { token };
      }
    } catch (error) {
      const reason = errorInfo(error)?.reason ?? "";
      if (!isInDoubt(error) || ENDS_STREAM.includes(reason)) throw error;
    } finally {
      stream.cancel();
    }
    // Draining, age, or a lost connection: open again with the last token.
    await pause(Math.random() * limit);
  }
}

/** Says that the results were used; durable when it returns, harmless to repeat. */
export async function ack(
  to: Connection,
  results: DeliveredResult__Output[],
): Promise<AckResult__Output[]> {
  const deliveries = results.map(({ delivery }) => ({
    inbox: delivery?.inbox,
    sequence: delivery?.sequence,
  }));
  const answer = await unary<AckDeliveriesResponse__Output>((done) =>
    to.inboxes.ackDeliveries({ deliveries }, credentials(), within(10_000), done),
  );
  return answer.results ?? [];
}

async function main() {
  const connection = connect(process.env.RECEIPTD_ADDRESS ?? "127.0.0.1:7070");
  const answer = await submit(connection, {
    // Once per intended action. Save it beside the action before the first attempt.
    operationId: v7(),
    intent: {
      action: "document.append",
      target: "notes/today",
      arguments: Buffer.from(JSON.stringify({ line: "hello" })),
    },
    inbox: "editor",
  });
  console.log(answer.origin, answer.operation?.state);

  const shown = new Set<string>();
  for await (const { result } of follow(connection, "editor", "my-laptop")) {
    if (!result) break; // An editor goes on reading.
    const key = `${result.delivery?.inbox} ${result.delivery?.sequence}`;
    if (!shown.has(key)) {
      shown.add(key);
      const word = result.redelivered ? "again" : "new";
      console.log(word, result.delivery?.sequence, result.operation?.state);
    }
    for (const acked of await ack(connection, [result])) console.log(acked.outcome);
  }
  connection.channel.close();
}

if (require.main === module) void main();
