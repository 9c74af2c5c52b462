// fetch as a page of an origin has it: with the browser's checks of CORS, which Node leaves out.

// https://fetch.spec.whatwg.org/#cors-safelisted-response-header-name
const SAFE_ANSWERS = [
  "cache-control",
  "content-language",
  "content-length",
  "content-type",
  "expires",
  "last-modified",
  "pragma",
];
const SAFE_REQUESTS = ["accept", "accept-language", "content-language", "content-type"];
const SAFE_TYPES = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/** What a page sees of an answer that it may not have: a TypeError without a reason. */
function refuse(reason: string): never {
  throw new TypeError("Failed to fetch", { cause: reason });
}

function list(headers: Headers, name: string): string[] {
  const value = headers.get(name) ?? "";
  return value.split(",").map((word) => word.trim().toLowerCase()).filter((word) => word);
}

function checkOrigin(answer: Response, origin: string) {
  const allowed = answer.headers.get("access-control-allow-origin");
  if (allowed !== origin && allowed !== "*") refuse(`allowed is ${allowed}`);
}

/** Which headers of a request a server must allow. */
function unsafe(headers: Headers): string[] {
  const isUnsafe = (name: string, value: string) =>
    !SAFE_REQUESTS.includes(name) || (name === "content-type" && !SAFE_TYPES.includes(value));
  return [...headers].filter(([name, value]) => isUnsafe(name, value)).map(([name]) => name).sort();
}

/** The fetch of a page of `origin`. */
export function page(origin: string): typeof fetch {
  return async (input, init) => {
    const method = init?.method ?? "GET";
    const headers = new Headers(init?.headers);
    const asked = unsafe(headers);
    if (asked.length > 0) {
      const preflight = await fetch(input, {
        method: "OPTIONS",
        headers: {
          origin,
          "access-control-request-method": method,
          "access-control-request-headers": asked.join(","),
        },
        signal: init?.signal,
      });
      checkOrigin(preflight, origin);
      if (!preflight.ok) refuse(`the preflight has status ${preflight.status}`);
      const allowed = list(preflight.headers, "access-control-allow-headers");
      // `*` never covers authorization.
      const covers = (name: string) =>
        allowed.includes(name) || (allowed.includes("*") && name !== "authorization");
      if (!asked.every(covers)) refuse(`${asked} asked, ${allowed} allowed`);
    }
    headers.set("origin", origin);
    const answer = await fetch(input, { ...init, headers });
    checkOrigin(answer, origin);
    const exposed = list(answer.headers, "access-control-expose-headers");
    const isSeen = (name: string) => SAFE_ANSWERS.includes(name) || exposed.includes(name);
    const seen = [...answer.headers].filter(([name]) => isSeen(name));
    const { status, statusText } = answer;
    return new Response(answer.body, { status, statusText, headers: seen });
  };
}
