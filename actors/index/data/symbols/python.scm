(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(module (expression_statement (assignment left: (identifier) @name) @constant))
(class_definition superclasses: (argument_list [(identifier) @super (attribute attribute: (identifier) @super)]))
(call function: [(identifier) @call (attribute attribute: (identifier) @call)])
(decorator [(identifier) @call (attribute attribute: (identifier) @call)])
(import_statement name: [(dotted_name) @import (aliased_import name: (dotted_name) @import)])
(import_from_statement module_name: (_) @import)
(comment) @attach
