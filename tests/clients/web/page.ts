// The guide's page, opened.

import { page } from "./browser.js";
import { connect, edit } from "./guide.js";

const { RECEIPTD_ADDRESS, RECEIPTD_ORIGIN = "", RECEIPTD_TOKEN } = process.env;
const connection = connect(`http://${RECEIPTD_ADDRESS}`, RECEIPTD_TOKEN, page(RECEIPTD_ORIGIN));
await edit(connection, console.log);
