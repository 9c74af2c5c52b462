// A page that edits: one operation under an id of its own, and the results of an inbox.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { v7 } from "uuid";
import {
  AckOutcome,
  InboxService,
  type DeliveredResult,
} from "./generated/receiptd/v1/inbox_service_pb.js";
import {
  OperationService,
  SubmitOperationRequestSchema,
} from "./generated/receiptd/v1/operation_service_pb.js";
import { Operation_State, Origin } from "./generated/receiptd/v1/types_pb.js";
import { ErrorInfoSchema } from "./generated/status_pb.js";

// Without an ErrorInfo of receiptd these say nothing about the outcome. A connection that was lost
// is Unknown here: a page does not learn more.
const DOUBT = [
  Code.Unknown,
  Code.Unavailable,
  Code.DeadlineExceeded,
  Code.Canceled,
  Code.Internal,
  Code.ResourceExhausted,
];
const AGAIN = ["WAIT", "RESUBMIT_SAME_ID", "SLOW_DOWN"];
// A newer stream of the same consumer goes on; or the token is of another life of the store.
const ENDS_STREAM = ["STREAM_SUPERSEDED", "STORE_EPOCH_CHANGED"];

const pause = (milliseconds: number) => new Promise((done) => setTimeout(done, milliseconds));

/** The services; the server must list this page's origin in `web_origins`. */
export function connect(baseUrl: string, token?: string, fetch = globalThis.fetch) {
  const credentials: Interceptor = (next) => (request) => {
    if (token) request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcWebTransport({ baseUrl, fetch, interceptors: [credentials] });
  return {
    operations: createClient(OperationService, transport),
    inboxes: createClient(InboxService, transport),
  };
}
export type Connection = ReturnType<typeof connect>;

/** The ErrorInfo of a failed call, if the service itself has answered. */
export function errorInfo(error: unknown) {
  const infos = ConnectError.from(error).findDetails(ErrorInfoSchema);
  return infos.find((info) => info.domain === "receiptd");
}

/** Whether the same request may be answered when it is sent again. */
function isInDoubt(error: unknown): boolean {
  const info = errorInfo(error);
  if (info) return AGAIN.includes(info.metadata.recovery);
  return DOUBT.includes(ConnectError.from(error).code);
}

/** The answer. Every attempt is the same request under the same id. */
export async function submit(
  to: Connection,
  asked: MessageInitShape<typeof SubmitOperationRequestSchema>,
  attempts = 8,
) {
  const request = create(SubmitOperationRequestSchema, asked);
  for (let attempt = 0; ; attempt++) {
    try {
      return await to.operations.submitOperation(request, { timeoutMs: 10_000 });
    } catch (error) {
      // Not a failure of the operation: keep the id, and look it up later.
      if (!isInDoubt(error) || attempt + 1 === attempts) throw error;
    }
    await pause(Math.random() * Math.min(5_000, 100 * 2 ** attempt));
  }
}

/** Yields each result with the last token, and no result when all that was there has been sent. */
export async function* follow(
  to: Connection,
  inbox: string,
  consumerId: string,
  token = "",
): AsyncGenerator<{ token: string; result?: DeliveredResult }> {
  for (let limit = 100; ; limit = Math.min(5_000, 2 * limit)) {
    const ending = new AbortController();
    const opening = { inbox, consumerId, resumeToken: token };
    try {
      for await (const { frame } of to.inboxes.streamDeliveries(opening, ending)) {
        limit = 50;
        // Before the token moves on, the results that it covers are the caller's.
        for (const result of frame.case === "deliveries" ? frame.value.results : []) {
          yield { token, result };
        }
        if (frame.value && "resumeToken" in frame.value) token = frame.value.resumeToken;
        if (frame.case === "caughtUp") yield { token };
      }
    } catch (error) {
      const reason = errorInfo(error)?.reason ?? "";
      if (!isInDoubt(error) || ENDS_STREAM.includes(reason)) throw error;
    } finally {
      ending.abort();
    }
    // Draining, age, or a lost connection: open again with the last token.
    await pause(Math.random() * limit);
  }
}

/** Says that the results were used; durable when it returns, harmless to repeat. */
export async function ack(to: Connection, results: DeliveredResult[]) {
  const deliveries = results.map(({ delivery }) => ({
    inbox: delivery?.inbox,
    sequence: delivery?.sequence,
  }));
  return (await to.inboxes.ackDeliveries({ deliveries }, { timeoutMs: 10_000 })).results;
}

/** What the page does; `show` puts a line where its reader sees it. */
export async function edit(connection: Connection, show: (line: string) => void) {
  const answer = await submit(connection, {
    // Once per intended action. Save it beside the action before the first attempt.
    operationId: v7(),
    intent: {
      action: "document.append",
      target: "notes/today",
      arguments: new TextEncoder().encode(JSON.stringify({ line: "hello" })),
    },
    inbox: "editor",
  });
  const state = answer.operation?.state ?? Operation_State.UNSPECIFIED;
  show(`${Origin[answer.origin]} ${Operation_State[state]}`);

  const shown = new Set<string>();
  for await (const { result } of follow(connection, "editor", "my-laptop")) {
    if (!result) break; // An editor goes on reading.
    const key = `${result.delivery?.inbox} ${result.delivery?.sequence}`;
    if (!shown.has(key)) {
      shown.add(key);
      const state = result.operation?.state ?? Operation_State.UNSPECIFIED;
      const word = result.redelivered ? "again" : "new";
      show(`${word} ${result.delivery?.sequence} ${Operation_State[state]}`);
    }
    for (const acked of await ack(connection, [result])) show(AckOutcome[acked.outcome]);
  }
}
