// JavaScript client libraries at a gateway. Prints what one of them saw, as JSON.
//
// node node_clients.mjs LIBRARY OPENAI_URL ANTHROPIC_URL        (in a folder that has the packages)

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [library, url, anthropicUrl] = process.argv.slice(2);
const require = createRequire(process.cwd() + "/");
const load = name => import(pathToFileURL(require.resolve(name)).href);
const words = [{ role: "user", content: "hi" }];
const schema = { type: "object", properties: { a: { type: "integer" } } };

const clients = {
  async openai() {
    const { OpenAI } = await load("openai");
    const client = new OpenAI({ baseURL: url, apiKey: "k" });
    const tool = { type: "function", function: { name: "add", parameters: schema } };
    const forced = await client.chat.completions.create({ model: "m", messages: words, tools: [tool], tool_choice: "required" });
    const stream = await client.chat.completions.create({ model: "m", messages: words, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    const response = await client.responses.create({ model: "m", input: "hi" });
    return { forced: forced.choices[0].message.tool_calls[0].function.name, stream: text, responses: response.output_text };
  },
  async anthropic() {
    const { Anthropic } = await load("@anthropic-ai/sdk");
    const client = new Anthropic({ baseURL: anthropicUrl, apiKey: "k" });
    const shared = { model: "m", max_tokens: 2000, messages: words };
    const tools = [{ name: "add", input_schema: schema }];
    const forced = await client.messages.create({ ...shared, tools, tool_choice: { type: "any" } });
    const plain = await client.messages.create(shared);
    const stream = await client.messages.stream(shared).finalText();
    return { plain: plain.content[0].text, forced: forced.content.find(block => block.type === "tool_use").name, stream };
  },
  async ai() {
    const { generateText, generateObject, streamText, tool, stepCountIs } = await load("ai");
    const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
    const { createAnthropic } = await load("@ai-sdk/anthropic");
    const { z } = await load("zod");
    const model = createOpenAICompatible({ name: "gateway", baseURL: url, apiKey: "k", supportsStructuredOutputs: true })("m");
    const other = createAnthropic({ baseURL: anthropicUrl + "/v1", apiKey: "k" })("m");
    const add = tool({ description: "Adds.", inputSchema: z.object({ a: z.number() }), execute: async ({ a }) => a });
    const used = await generateText({ model, prompt: "go", tools: { add }, stopWhen: stepCountIs(3) });
    const forced = await generateText({ model, prompt: "hi", tools: { add }, toolChoice: "required" });
    const made = await generateObject({ model, schema: z.object({ sum: z.number() }), prompt: "hi" });
    const stream = streamText({ model, prompt: "hi" });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    const plain = await generateText({ model: other, prompt: "hi" });
    return { tools: used.text, forced: forced.toolCalls[0].toolName, structured: made.object.sum, stream: text, anthropic: plain.text };
  },
};

console.log(JSON.stringify(await clients[library]()));
