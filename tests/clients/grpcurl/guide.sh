ADDRESS="${RECEIPTD_ADDRESS:-127.0.0.1:7070}"
call() {
  grpcurl -plaintext -max-time "${SECONDS_MAX:-10}" \
    ${RECEIPTD_TOKEN:+-H "authorization: Bearer $RECEIPTD_TOKEN"} -d "$2" \
    "$ADDRESS" "receiptd.v1.$1"
}

# Once per intended action, and kept: the id, and when it was made.
ID="shell-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
MADE="$(date -u +%Y-%m-%dT%H:%M:%SZ)"

# `arguments` is a field of bytes, and JSON carries bytes as base64.
ARGUMENTS="$(printf %s '{"line": "hello"}' | base64)"
SUBMIT='{
  "operationId": "'$ID'", "mintTime": "'$MADE'", "inbox": "editor",
  "intent": {"action": "document.append", "target": "notes/today", "arguments": "'$ARGUMENTS'"}
}'

# The answer was lost? The same again, under the same id.
attempt=1
until call OperationService/SubmitOperation "$SUBMIT"; do
  [ "$attempt" -lt 5 ] || exit 1
  attempt=$((attempt + 1))
  sleep 1
done

call OperationService/GetOperation '{"operationId": "'$ID'", "mintTime": "'$MADE'"}'

# A stream goes on until something ends it: here its time, which is no error of the operation.
SECONDS_MAX=2 call InboxService/StreamDeliveries \
  '{"inbox": "editor", "consumerId": "my-shell"}' || true

# By inbox and number, as the stream has shown them.
call InboxService/AckDeliveries '{"deliveries": [{"inbox": "editor", "sequence": "1"}]}'
