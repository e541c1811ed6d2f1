import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    rules: {
      "no-undef": "off", // the type checker knows the browser's globals
      "no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "no-sequences": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
];
