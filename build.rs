//! Compiles the protocol without an installed protoc.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files: Vec<PathBuf> = fs::read_dir("proto/receiptd/v1")?
        .map(|found| found.map(|file| file.path()))
        .collect::<Result<_, _>>()?;
    files.sort();

    let descriptors = protox::compile(&files, ["proto"])?;
    // tonic-prost-build writes no descriptor file when it is handed descriptors; the reflection
    // service needs one.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("receiptd_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .btree_map(".")
        .codec_path("crate::codec::SmallBuffers")
        // A convenience `connect` of each client would clash with the RPC of that name.
        .build_transport(false)
        // Rare in a message that is kept by value in many places.
        .boxed(".receiptd.v1.Gap.list_operations")
        .compile_fds(descriptors)?;
    Ok(())
}
