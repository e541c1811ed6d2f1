import css from "@eslint/css";
import js from "@eslint/js";

export default [
  {
    files: ["**/*.js"],
    ...js.configs.recommended,
    rules: {
      ...js.configs.recommended.rules,
      "no-undef": "off", // the type checker knows the browser's globals
      "no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "no-sequences": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
  {
    files: ["**/*.css"],
    language: "css/css",
    ...css.configs.recommended,
    rules: {
      ...css.configs.recommended.rules,
      "css/no-important": "off", // what is hidden, and what a printed page or a user's wish for less motion decides
      "css/no-invalid-properties": ["error", { allowUnknownVariables: true }], // style.css has those of all pages
      "css/use-baseline": ["error", { allowProperties: ["accent-color", "forced-color-adjust", "resize"] }], // without them a page only looks plainer
    },
  },
];
