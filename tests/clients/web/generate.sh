npx --no-install buf generate
npx --no-install tsc --strict --skipLibCheck --module nodenext --target es2022 --outDir built *.ts
