// Shows the document that the page holds. The page makes no calls, so nothing on it asks for a token.
const nothing = () => null;
SwaggerUIBundle({
  spec: JSON.parse(document.getElementById("document").textContent),
  domNode: document.getElementById("page"),
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  defaultModelsExpandDepth: 0,
  supportedSubmitMethods: [],
  validatorUrl: null,
  plugins: [{
    components: { SchemesContainer: nothing, authorizeBtn: nothing, authorizeOperationBtn: nothing },
  }],
});
