mkdir -p generated
python -m grpc_tools.protoc -I proto --python_out=generated --pyi_out=generated \
  --grpc_python_out=generated proto/receiptd/v1/*.proto
