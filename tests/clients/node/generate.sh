npx --no-install proto-loader-gen-types --longs=String --enums=String --bytes=Buffer --oneofs \
  --grpcLib=@grpc/grpc-js --includeDirs=proto --includeDirs=. --outDir=generated \
  receiptd/v1/session_service.proto status.proto
npx --no-install tsc --strict --skipLibCheck --module commonjs --target es2022 --outDir built *.ts
