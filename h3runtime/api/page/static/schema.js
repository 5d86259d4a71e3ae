// Reads the server's own description of a request, so that the form can't say anything else than the server.

const AT = "#/components/schemas/";

/** The schema itself behind references and the choice with null, with what stands beside them. */
export function resolve(schema, schemas) {
  if (schema.$ref) {
    const { $ref, ...beside } = schema;
    return { ...resolve(schemas[$ref.slice(AT.length)], schemas), ...beside };
  }
  if (schema.allOf?.length === 1) {
    const { allOf, ...beside } = schema;
    return { ...resolve(allOf[0], schemas), ...beside };
  }
  const kinds = (schema.anyOf || []).filter((kind) => kind.type !== "null");
  if (schema.anyOf && schema.anyOf.length > kinds.length && kinds.length === 1) {
    const { anyOf, ...beside } = schema;
    return { ...resolve(kinds[0], schemas), ...beside };
  }
  return schema;
}

/** What kind of control a schema asks for. */
export function kindOf(schema) {
  if (schema.enum || schema.const !== undefined) return "choice";
  const kinds = (schema.anyOf || []).map((kind) => kind.type);
  if (kinds.includes("boolean")) return "switch";
  if (kinds.length > 0 && kinds.every((kind) => ["integer", "number", "string", "null"].includes(kind))) return "text";
  if (schema.type === "boolean") return "switch";
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "string") return schema.maxLength > 300 ? "prose" : "text";
  if (schema.type === "object" && schema.properties) return "group";
  return schema.type === "array" ? "list" : "json";
}

export const choicesOf = (schema) => (schema.const !== undefined ? [schema.const] : schema.enum);

/** The schemas of every task's body by task, and all schemas by name. */
export async function readDescription(http) {
  const description = await http.json("/openapi.json", { quiet: true });
  const schemas = description.components.schemas;
  const body = description.paths["/generate"].post.requestBody.content["application/json"].schema;
  const tasks = {};
  for (const [task, reference] of Object.entries(body.discriminator.mapping)) {
    tasks[task] = schemas[reference.slice(AT.length)];
  }
  return { schemas, tasks };
}
