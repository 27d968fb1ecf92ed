// The page's side of a check: it loads a folder by transformers.js, as a web page does, and runs what it loaded. `page.py` asks it.
//
// Every answer of `ask` is a JSON text. Arrays come and go as bytes: small ones in the question and the answer, in base64; large ones are
// fetched from /inbox/, and read in pieces. What a session gives stays here, by a number, until it is dropped.
import * as library from "/packages/@huggingface/transformers/dist/transformers.min.js";

const { env, Tensor } = library;
const PIECE = 24 << 20;
const TYPES = {
  float32: Float32Array, float16: globalThis.Float16Array ?? Uint16Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  bool: Uint8Array, uint8: Uint8Array, int8: Int8Array,
};
const held = new Map();
let count = 0;
let model = null;
let tokenizer = null;

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/";
env.useBrowserCache = false;
env.useWasmCache = false;
env.backends.onnx.wasm.numThreads = 1;
env.backends.onnx.wasm.wasmPaths = "/packages/onnxruntime-web/dist/";
env.fetch = whole;

/** A file in pieces, since one message to the browser has a greatest length. What it gives has of a Response what the library reads. */
async function whole(address) {
  const path = String(address);
  const told = await fetch(`${path}?size`);
  if (!told.ok) return told;
  const size = Number(await told.text());
  const headers = new Headers({ "content-length": String(size) });
  const read = async () => {
    const bytes = new Uint8Array(size);
    for (let start = 0; start < size; start += PIECE) {
      const piece = await fetch(`${path}?from=${start}&to=${Math.min(size, start + PIECE)}`);
      if (!piece.ok) throw new Error(`${path} can't be read to its end`);
      bytes.set(new Uint8Array(await piece.arrayBuffer()), start);
    }
    return bytes;
  };
  return { ok: true, status: 200, headers, arrayBuffer: async () => (await read()).buffer };
}

async function array(one) {
  if (one.held !== undefined) return held.get(one.held);
  const bytes = one.data === undefined ? await (await whole(`/inbox/${one.inbox}`)).arrayBuffer() : Uint8Array.from(atob(one.data), (c) => c.charCodeAt(0)).buffer;
  return new Tensor(one.type, new TYPES[one.type](bytes), one.shape);
}

/** Bytes of an array in base64. */
async function written({ data }, start, end) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset + start, end - start);
  if (bytes.toBase64) return bytes.toBase64();
  const address = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(new Blob([bytes]));
  });
  return address.slice(address.indexOf(",") + 1);
}

function drop(numbers) {
  for (const number of numbers) {
    held.get(number)?.dispose();
    held.delete(number);
  }
}

function port(one) {
  return { name: one.name, type: one.type, shape: [...one.shape] };
}

const commands = {
  async open({ kind }) {
    const options = { device: "wasm" };
    model = await library[kind].from_pretrained("model", options);
    const sessions = Object.entries(model.sessions).map(([name, one]) => [
      name, { inputs: one.inputMetadata.map(port), outputs: one.outputMetadata.map(port), dtype: one.config?.dtype ?? "" },
    ]);
    return { sessions: Object.fromEntries(sessions), library: env.version, model: model.constructor.name };
  },

  /** `kept`: which of the outputs stay here; of the others, those that are small are in the answer. */
  async run({ session, feeds, outputs, kept }) {
    const given = {};
    for (const [name, one] of Object.entries(feeds)) given[name] = (await array(one)).ort_tensor;
    const made = await model.sessions[session].run(given, outputs);
    const answer = {};
    for (const name of outputs) {
      const tensor = new Tensor(made[name]);
      const bytes = tensor.data.byteLength;
      answer[name] = { type: tensor.type, shape: tensor.dims, bytes };
      if (bytes <= PIECE && !kept.includes(name)) {
        answer[name].data = await written(tensor, 0, bytes);
        tensor.dispose();
      } else {
        held.set(++count, tensor);
        answer[name].held = count;
      }
    }
    return answer;
  },

  async read({ number, start, end }) {
    return written(held.get(number), start, end);
  },

  async tokens() {
    tokenizer ??= await library.AutoTokenizer.from_pretrained("model");
    return tokenizer.constructor.name;
  },

  async encode({ texts }) {
    await commands.tokens();
    return texts.map((text) => tokenizer.encode(text));
  },

  async pair({ first, second }) {
    await commands.tokens();
    const read = tokenizer(first, { text_pair: second, return_tensor: false, return_token_type_ids: true });
    return [read.input_ids, read.token_type_ids ?? read.input_ids.map(() => 0)];
  },

  async decode({ ids }) {
    await commands.tokens();
    return ids.length ? tokenizer.decode(ids, { skip_special_tokens: true }) : "";
  },

  /** What the library's own decoding writes after these tokens, by the most likely token alone. */
  async generate({ ids, tokens, settings }) {
    const input = new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
    const mask = new Tensor("int64", BigInt64Array.from(ids, () => 1n), [1, ids.length]);
    const asked = { ...settings, max_new_tokens: tokens, max_length: null, do_sample: false };
    const made = await model.generate({ inputs: input, attention_mask: mask, ...asked });
    return Array.from((made.sequences ?? made)[0].data ?? (made.sequences ?? made).tolist()[0], Number);
  },
};

globalThis.ask = async (command, facts, dropped) => {
  drop(dropped);
  return JSON.stringify((await commands[command](facts)) ?? null);
};
globalThis.ready = true;
