// Fields whose legal names only the running server knows: /ready lists them, with why others can't be had.

export const BACKENDS = ["attention", "linear"];

/** A field's schema with these names in it as a choice; unchanged while the server hasn't loaded. */
export function withNames(schema, family) {
  if (!family) return schema;
  const why = Object.entries(family.unavailable).map(([name, reason]) => `${name}: ${reason}`);
  const told = [`${family.default}: ${family.why}.`, why.length ? `Not here: ${why.join("; ")}.` : ""];
  return { enum: family.available, default: family.default, description: told.filter(Boolean).join(" ") };
}
